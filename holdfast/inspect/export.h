// Writes the weights of a checkpoint as other tools read them: under the names that the
// model's own state_dict() has, without the rest of the training.
//
//   model.pt            what torch.load() gives to load_state_dict(strict=True)
//   model.safetensors   the same as one safetensors file
//   hf                  a folder for from_pretrained(), with the user's config.json
//   peft                the folder of a PEFT adapter
//
// The source is opened as open_any.h describes. In a step that a Checkpointer of the
// Python package has made, the tensors "model.*" are the weights. From any other source
// all tensors are taken as they are called.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/formats/sharded_safetensors.h"
#include "holdfast/inspect/convert.h"
#include "holdfast/inspect/metered_sources.h"
#include "holdfast/inspect/open_any.h"

namespace holdfast {

// What is done with a tensor that the model knows by several names.
enum class Ties {
  kByFormat,  // torch: one tensor with several names; safetensors: kEach; hf: kOnce
  kEach,      // stored under each name
  kOnce,      // stored under the first name
};

// "each", "once", or empty for kByFormat.
Result<Ties> parse_ties(std::string_view text);
// A number of bytes such as "5GB", "500MB", "2GiB" or "1000000": at least 1.
Result<int64_t> parse_byte_count(std::string_view text);

struct ExportOptions {
  // "safetensors", "torch", "hf" or "peft". If empty, the target's name decides; a
  // folder is "hf".
  std::string format{};
  // For hf and peft: config.json or adapter_config.json, or a folder with it, whose
  // tokenizer files are copied, too.
  Path config{};
  std::optional<Dtype> dtype{};  // what floating-point tensors are converted to
  bool ema = false;              // the average of the weights instead of the weights
  bool optimizer = false;        // what optimizer.load_state_dict() takes instead
  // Patterns with * and ?, with commas between them, of the names to export, and what
  // is removed from the beginning of these names.
  std::string select{}, strip{};
  // For peft, the name of the adapter. If empty, the one that was active in the training,
  // or the only one.
  std::string adapter{};
  int64_t shard_bytes = kShardBytes;  // for hf
  Ties ties = Ties::kByFormat;
  Reading reading{};
};

// Afterwards the whole target is there, or nothing of it. If `from` is a run, its newest
// undamaged step is exported. Failures:
//   kConflict     the target exists
//   kInvalid      options that contradict each other or the source
//   kNotFound     the source has no such weights
//   kUnsupported  the format cannot store something that the values depend on
//   kCorrupt      the source's bytes are not those that were saved
Result<Written> export_state(Env& env, const Path& from, const Path& to,
                             const ExportOptions& options);

}  // namespace holdfast

// Mends the files of a committed step, exactly or not at all.
//
// Every byte of a step has a digest, so damage is known by chunk, and right bytes are
// known when they are seen. For each damaged chunk or file these rungs are tried, in
// order, and the first that gives bytes with the right digest is used:
//
//   reread   The bytes are read again, past the system's cache. If they are right then,
//            the disk has them: nothing is written.
//   seal     One damaged word of a tensor is found by its seal.
//   crc      One flipped bit is found by the CRC of its chunk, if a seal confirms it; or,
//   digest   in the manifest, an index or another small file, by the digest of the file.
//   tier, step, copy, parity
//            The sources of the caller (copy_source.h), in the caller's order.
//
// Then each file with damage is written again under a hidden name beside it and synced,
// while every chunk is compared with its digest, and replaces the damaged file by a
// rename, also in all other steps that have a hard link to it. A crash leaves the damaged
// file or the mended one under each name.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/repair/copy_source.h"

namespace holdfast {

// Something that was mended, or that was right when it was read again.
struct MendedPart {
  Damage damage{};
  std::string rung{};  // "reread", "seal", ...
  // What was found: "h.3.weight [12, 7] bit 30: 7.25e+36 -> 0.0213, by its seal".
  std::string what{};
};

// Something that no rung can mend.
struct LostPart {
  struct Said {
    std::string rung{};  // or the name of the source
    std::string why{};
  };
  Damage damage{};
  std::vector<Said> rungs{};  // all that were tried
};

// "rank-0000.safetensors: chunk 3 (...) has crc ...; seal: more than one word differs;
// tier s3://b/gpt: does not have the step".
std::string to_string(const LostPart& lost);

// Gives the right bytes of a chunk, or of a whole file that is no shard.
using MakeBytes = std::function<Result<Bytes>()>;

struct FileMend {
  std::string file{};
  // For a shard: the mended chunks, by number. All others are copied from the file.
  std::map<size_t, MakeBytes> chunks{};
  // For any other file.
  MakeBytes whole{};
};

// How a step can be mended. It reads the step and the sources again when it is carried
// out, so they must outlive it.
struct StepRepair {
  // Shared with the functions of `files`.
  std::shared_ptr<const StepParts> step{};
  std::vector<MendedPart> mended{};
  std::vector<LostPart> lost{};
  std::vector<FileMend> files{};

  bool whole() const { return mended.empty() && lost.empty(); }
};

using CopySources = std::span<const std::unique_ptr<CopySource>>;

// Finds out how to mend the step, and changes nothing. Fails if the folder cannot be read.
// If the manifest is lost, nothing else is looked at.
Result<StepRepair> plan_step_repair(Env& env, const Path& folder, CopySources sources,
                                    const Progress& progress = {});

// Replaces the damaged files. All steps in the folder above that have a link to a damaged
// file get the mended one, too. Fails with kCorrupt if bytes are not as they were when
// the repair was planned; files that were replaced before stay replaced.
Result<void> apply_step_repair(Env& env, const StepRepair& repair);

}  // namespace holdfast

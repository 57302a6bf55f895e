// Checks whether a step is whole: fast, by its manifest, the sizes of its files and its
// small files; or in full, by reading every byte.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/store/manifest.h"

namespace holdfast {

enum class Depth {
  // Checks the manifest, that every file is there with its size, and the digests of all
  // files but the shards.
  kFast,
  // Checks also every chunk of every shard.
  kFull,
};

// One thing that is wrong with a step.
struct Damage {
  std::string file{};
  // The tensors that have bytes in the chunk, if they are known.
  std::vector<std::string> tensors{};
  // The number of the chunk in the shard. -1 if the damage concerns the whole file.
  int64_t chunk = -1;
  // The first byte that is wrong, as far as it is known.
  int64_t offset = 0;
  int64_t bytes = 0;
  std::string what{};
  friend bool operator==(const Damage&, const Damage&) = default;
};

// Example: "rank-0000.safetensors: chunk 3 (bytes 8192 to 12288; w1, w2) has crc ...;
// expected ..."
std::string to_string(const Damage& damage);

struct StepReport {
  // nullopt if the manifest itself is damaged.
  std::optional<Manifest> manifest{};
  std::vector<Damage> damage{};
  // Files that the manifest does not name. They do no harm.
  std::vector<std::string> extra{};
  int64_t bytes_read = 0;

  bool whole() const { return damage.empty(); }
  // kCorrupt with the first damage and the number of damages. Must not be called if the
  // step is whole.
  Error error() const;
};

// Called now and then with the bytes of shards that were read so far, and with the
// bytes of all shards.
using Progress = std::function<void(int64_t done, int64_t total)>;

// True for a failure that does not tell whether the stored bytes are right: no memory,
// a stale handle, a timeout, a missing permission. Code that looks for a whole step
// must not skip a step because of such a failure.
bool cannot_tell(const Error& error);

// Checks everything, also after it has found damage. A file that the disk does not
// return, even after pauses (env/patient_env.h), counts as damage. Fails if the folder
// cannot be listed (kNotFound if it is not there or was removed), and if it cannot be
// told whether a file is as it should be (cannot_tell()). Reads shards past the
// system's cache where possible, with 64 MiB of its own memory.
Result<StepReport> check_step(Env& env, const Path& folder, Depth depth,
                              const Progress& progress = {});

// Fails with kNotFound if there is no manifest, and with kCorrupt if it is damaged or
// the disk does not return it.
Result<Manifest> read_manifest(Env& env, const Path& folder);

}  // namespace holdfast

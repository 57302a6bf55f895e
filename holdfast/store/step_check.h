// Is a step whole? Fast, by its manifest, sizes and small files, or in full, by reading
// every byte.
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
  kFast,  // manifest; every file there with its size; digests of all but the shards
  kFull,  // also every chunk of every shard
};

// One thing that is wrong with a step.
struct Damage {
  std::string file{};
  // Those that have bytes in the chunk, where it is known.
  std::vector<std::string> tensors{};
  int64_t chunk = -1;  // of the shard; -1: it is about the file as a whole
  int64_t offset = 0;  // first byte that is not what it should be, as far as is known
  int64_t bytes = 0;
  std::string what{};
  friend bool operator==(const Damage&, const Damage&) = default;
};

// "rank-0000.safetensors: chunk 3 (bytes 8192 to 12288; w1, w2): crc ..., want ..."
std::string to_string(const Damage& damage);

struct StepReport {
  std::optional<Manifest> manifest{};  // nullopt if that itself is damaged
  std::vector<Damage> damage{};
  // Files that the manifest does not name. They harm nobody and are nobody's.
  std::vector<std::string> extra{};
  int64_t bytes_read = 0;

  bool whole() const { return damage.empty(); }
  // kCorrupt with the first damage and how many there are. Only if not whole.
  Error error() const;
};

// Called now and then with bytes of shards done and to do.
using Progress = std::function<void(int64_t done, int64_t total)>;

// True for a failure that says nothing of what is stored: no memory, a stale handle, a
// deadline, no permission. Whoever looks for a whole step must not pass over one for it.
bool cannot_tell(const Error& error);

// Looks at everything, also after damage was found. What a disk does not give back, asked
// again after a pause (base/patient_env.h), is damage. Fails if the folder cannot be listed
// (kNotFound: it is not there, or not any more), and where it cannot be told whether a file
// is what it should be (cannot_tell).
// Reads shards past the system's cache where it can, with 64 MiB of its own memory.
Result<StepReport> check_step(Env& env, const Path& folder, Depth depth,
                              const Progress& progress = {});

// kNotFound if there is none, kCorrupt if it is damaged or the disk does not give it back.
Result<Manifest> read_manifest(Env& env, const Path& folder);

}  // namespace holdfast

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
#include "holdfast/store/records.h"

namespace holdfast {

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

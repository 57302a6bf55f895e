// Writes the parity file of a shard (shard/parity.h) into the folder of a step.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "holdfast/shard/parity.h"
#include "holdfast/store/records.h"

namespace holdfast {

// The parity of a file whose bytes arrive while that file is being written.
class ParityFile {
 public:
  // Creates the parity file of `shard`, which will have this many bytes.
  static Result<std::unique_ptr<ParityFile>> create(Env& env, const Path& folder,
                                                    const std::string& shard,
                                                    double share, int64_t bytes);

  Result<void> add(ByteView bytes) { return encoder_.add(bytes); }
  // Makes the contents durable. Returns the entry for the manifest.
  Result<ManifestFile> finish();

 private:
  ParityFile(std::unique_ptr<FileSink> sink, std::string name, const ParityShape& shape)
      : sink_(std::move(sink)), name_(std::move(name)), encoder_(shape, *sink_) {}

  const std::unique_ptr<FileSink> sink_;
  const std::string name_;
  ParityEncoder encoder_;
};

// The same for a shard that is written already: reads it.
Result<ManifestFile> write_parity(Env& env, const Path& folder,
                                  const std::string& shard, double share);

// Links the parity file of an older shard, if it has one, into a step that links the
// shard as `name`. Returns its entry for the manifest. If the file is not what the older
// step's manifest says, writes parity with this share anew: its digest would make the
// damage look right.
Result<std::optional<ManifestFile>> link_parity(Env& env, const Path& shard,
                                                const Path& folder,
                                                const std::string& name, double share);

}  // namespace holdfast

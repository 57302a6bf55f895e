// The manifest of a checkpoint. It is written last, and its presence marks the
// checkpoint as committed. The manifest names every file of the step with size and
// digest and ends with its own digest, so that every bit of a checkpoint is covered by
// a digest.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/clock.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {

enum class DigestKind { kCrc32c, kXxh3 };

// Formats the digest of a shard, "crc32c:9f8e7d6c". It is the combination of the CRCs
// of its chunks (shard_index.h).
std::string crc_digest(uint32_t crc);
// Computes the digest of a small file that is read as a whole, "xxh3:<32 digits>".
std::string xxh3_digest(ByteView bytes);
// Fails with kInvalid unless the digest has one of these two forms.
Result<DigestKind> parse_file_digest(std::string_view digest);

// One file of a step. The digest is "crc32c:9f8e7d6c" for a shard and "xxh3:<32
// digits>" for any other file.
struct ManifestFile {
  std::string name{};
  int64_t bytes = 0;
  std::string digest{};
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  int64_t step = 0;
  std::string run{};  // id of the run
  // Counts the owners of the run: grows each time a process takes the run over.
  int64_t epoch = 0;
  // Counts the commits of the run. The newer of two steps has the greater
  // (epoch, sequence).
  int64_t sequence = 0;
  uint64_t attempt = 0;
  int world = 1;           // number of ranks that wrote the checkpoint
  std::string parallel{};  // parallel configuration in the job's words; may be empty
  // Folder of the checkpoint that the job was resumed from; empty if there was none.
  std::string parent{};
  WallTime created{};
  std::map<std::string, std::string> software{};  // name to version
  std::map<std::string, double> metrics{};        // used by retention's `best` rule
  std::vector<ManifestFile> files{};
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Encodes the manifest as JSON that ends with its own digest (json_digest_internal.h).
// All texts must be UTF-8.
Bytes encode_manifest(const Manifest& manifest);

// Fails with kCorrupt, naming `where`, if the digest is wrong, a file name leaves the
// folder, or a field is missing, unknown or has an impossible value. Fails with
// kUnsupported for a newer version.
Result<Manifest> decode_manifest(ByteView json, const std::string& where);

}  // namespace holdfast

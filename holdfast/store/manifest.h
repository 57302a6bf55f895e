// The manifest of a checkpoint: written last, it is the commit mark. It names every file
// of the step with size and digest, and ends with its own digest, so that no bit of a
// checkpoint is uncovered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/clock.h"

namespace holdfast {

inline constexpr std::string_view kManifestName = "manifest.json";

enum class DigestKind { kCrc32c, kXxh3 };

// "crc32c:9f8e7d6c", for shards: their chunks' digests combined (shard_index.h).
std::string crc_digest(uint32_t crc);
// "xxh3:<32 digits>", for what is small and read whole.
std::string xxh3_digest(ByteView bytes);
// kInvalid unless it is one of the two.
Result<DigestKind> parse_file_digest(std::string_view digest);

// One file of a step. Digest: "crc32c:9f8e7d6c" of a shard, "xxh3:<32 digits>" of others.
struct ManifestFile {
  std::string name{};
  int64_t bytes = 0;
  std::string digest{};
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  int64_t step = 0;
  std::string run{};     // id of the run
  int64_t epoch = 0;     // of ownership: grows each time somebody takes the run over
  int64_t sequence = 0;  // of commits, grows within a run; (epoch, sequence) is age
  uint64_t attempt = 0;
  int world = 1;           // ranks that wrote it
  std::string parallel{};  // parallel coordinates, as the job names them; may be empty
  std::string parent{};  // folder of the checkpoint that the job went on from; or empty
  WallTime created{};
  std::map<std::string, std::string> software{};  // name to version
  std::map<std::string, double> metrics{};        // what `best n` retention looks at
  std::vector<ManifestFile> files{};
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Texts must be UTF-8. JSON whose last member is "digest", 32 hexadecimal digits of XXH3-128 over all bytes
// before them.
Bytes encode_manifest(const Manifest& manifest);

// kCorrupt, naming `where`, if the digest is wrong, a name leaves the folder, or anything
// is missing, unknown or senseless. kUnsupported for a newer version.
Result<Manifest> decode_manifest(ByteView json, const std::string& where);

}  // namespace holdfast

#include "holdfast/store/manifest.h"

#include <unordered_set>

#include "holdfast/base/xxh3.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/base/json_digest.h"

namespace holdfast {
namespace {

// A manifest with the field "temporary" is of version 2, any other of version 1, so that
// older code reads it.
constexpr int64_t kVersion = 1, kVersionTemporary = 2;

Result<void> check_files(const std::vector<ManifestFile>& files) {
  std::unordered_set<std::string_view> names{kManifestName};
  for (const ManifestFile& file : files) {
    HOLDFAST_TRY(check_file_name(file.name));
    HOLDFAST_TRY(parse_file_digest(file.digest).within(file.name));
    if (names.insert(file.name).second) continue;
    return invalid("\"{}\" is listed twice, or lists itself; expected it once", file.name);
  }
  return {};
}

}  // namespace

void fields(Is<Manifest> auto& self, auto&& field) {
  field.kind("manifest");
  int64_t version = self.temporary ? kVersionTemporary : kVersion;
  field.version(version, kVersionTemporary);
  field("step", self.step);
  field("run", self.run);
  field.line();
  field.integer("epoch", self.epoch, 0, kMostCommits);
  field.integer("sequence", self.sequence, 0, kMostCommits);
  field.text("attempt", self.attempt, hex64, parse_hex64, "16 hexadecimal digits");
  constexpr int64_t kMostRanks = 1 << 24;
  field.integer("world", self.world, 1, kMostRanks);
  field("parallel", self.parallel);
  field("parent", self.parent);
  if (version == kVersionTemporary) field("temporary", self.temporary);
  field.line();
  field("created_ns", self.created);
  field("software", self.software);
  field.line();
  field("metrics", self.metrics);
  field.line();
  field("files", self.files);
  field.check([&] { return check_files(self.files); });
}

std::string crc_digest(uint32_t crc) { return fmt::format("crc32c:{:08x}", crc); }

std::string xxh3_digest(ByteView bytes) {
  return fmt::format("xxh3:{}", xxh3_128(bytes).hex());
}

Result<DigestKind> parse_file_digest(std::string_view digest) {
  const size_t colon = std::min(digest.find(':'), digest.size());
  const std::string_view kind = digest.substr(0, colon);
  const size_t expected = kind == "crc32c" ? 8 : kind == "xxh3" ? 32 : 0;
  const std::string_view digits = digest.substr(std::min(colon + 1, digest.size()));
  if (expected == 0 || digits.size() != expected || !from_hex(digits).ok()) {
    return invalid(
        "unknown digest; expected crc32c: and 8 hexadecimal digits, or xxh3: and 32");
  }
  return expected == 8 ? DigestKind::kCrc32c : DigestKind::kXxh3;
}

Bytes encode_manifest(const Manifest& manifest) { return encode_with_digest(manifest); }

Result<Manifest> decode_manifest(ByteView json, const std::string& where) {
  return decode_with_digest<Manifest>(json, where);
}

}  // namespace holdfast

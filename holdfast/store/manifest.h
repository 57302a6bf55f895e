// How a manifest (records.h) is written and read. It ends with its own digest, so that
// every bit of a checkpoint is covered by a digest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/records.h"

namespace holdfast {

enum class DigestKind { kCrc32c, kXxh3 };

// Formats the digest of a shard, "crc32c:9f8e7d6c". It is the combination of the CRCs
// of its chunks (shard_index.h).
std::string crc_digest(uint32_t crc);
// Computes the digest of a small file that is read as a whole, "xxh3:<32 digits>".
std::string xxh3_digest(ByteView bytes);
// Fails with kInvalid unless the digest has one of these two forms.
Result<DigestKind> parse_file_digest(std::string_view digest);

// Encodes the manifest as JSON that ends with its own digest (base/json_digest.h).
// All texts must be UTF-8.
Bytes encode_manifest(const Manifest& manifest);

// Fails with kCorrupt, naming `where`, if the digest is wrong, a file name leaves the
// folder, or a field is missing, unknown or has an impossible value. Fails with
// kUnsupported for a newer version.
Result<Manifest> decode_manifest(ByteView json, const std::string& where);

}  // namespace holdfast

// Members of tar archives: POSIX (ustar, pax) and GNU, as far as they are plain files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holdfast/dataset/scanned_file.h"

namespace holdfast {

inline constexpr int64_t kTarBlock = 512;

// A plain file of an archive.
struct TarMember {
  int64_t header = 0;  // where its first header begins, that of a long name included
  int64_t begin = 0;   // of its bytes
  int64_t size = 0;
  std::string name{};

  // How many bytes of the archive its bytes take.
  int64_t padded() const { return (size + kTarBlock - 1) / kTarBlock * kTarBlock; }
  // Where the next header begins.
  int64_t end() const { return begin + padded(); }
};

// The sample and the field that a member is, as WebDataset has it: "a/b.seg.png" is the
// field "seg.png" of the sample "a/b". A member without both has no field.
struct TarField {
  std::string key{};
  std::string field{};
};
TarField tar_field_of(const std::string& name);

// Reads on to behind the next plain file, which it returns; nullopt at the end of the archive.
// Fails with kCorrupt for bytes that are no header and for a member that is cut short, and
// with kUnsupported for a sparse file.
Result<std::optional<TarMember>> next_tar_member(ScannedFile& archive);

// The plain files of a piece of an archive that begins with a header.
Result<std::vector<TarMember>> tar_members(const std::string& where, ByteView bytes);

}  // namespace holdfast

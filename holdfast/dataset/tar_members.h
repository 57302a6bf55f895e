// Members of tar archives: POSIX (ustar, pax) and GNU, as far as they are plain files.
#pragma once

#include <string>
#include <vector>

#include "holdfast/base/bytes.h"

namespace holdfast {

inline constexpr int64_t kTarBlock = 512;

// A plain file of an archive.
struct TarMember {
  int64_t header = 0;  // where its first header begins, that of a long name included
  int64_t begin = 0;   // of its bytes
  int64_t size = 0;
  std::string name{};

  // Where the next header begins.
  int64_t end() const { return begin + (size + kTarBlock - 1) / kTarBlock * kTarBlock; }
};

// The sample and the field that a member is, as WebDataset has it: "a/b.seg.png" is the
// field "seg.png" of the sample "a/b". A member without both has no field.
struct TarField {
  std::string key{};
  std::string field{};
};
TarField tar_field_of(const std::string& name);

// Reads the headers of an archive one after the other. Not thread safe.
class TarHeaders {
 public:
  // `where` is the name of the archive, for messages.
  explicit TarHeaders(std::string where) : where_(std::move(where)) {}

  // What follows a header.
  enum class Next {
    kMember,   // member() is a plain file; skip its bytes
    kText,     // give the next bytes, padded() of them, to add_text()
    kSkipped,  // something else; skip padded() bytes
    kEnd,      // the archive has ended
  };
  // The header at this offset of the archive. Fails with kCorrupt if it is none, and with
  // kUnsupported for a sparse file.
  Result<Next> add_header(int64_t at, ByteView block);
  // The text of a long name or a pax header, without padding.
  Result<void> add_text(ByteView text);

  // How many bytes follow the header, and how many of the archive they take.
  int64_t size() const { return size_; }
  int64_t padded() const { return (size_ + kTarBlock - 1) / kTarBlock * kTarBlock; }
  const TarMember& member() const { return member_; }

 private:
  Result<void> add_pax(ByteView text);

  const std::string where_;
  int64_t first_header_ = -1;  // of the headers that belong to the next member
  std::string long_name_{};
  int64_t long_size_ = -1;
  char type_ = 0;
  int64_t size_ = 0;
  TarMember member_{};
};

// The members of an archive, or of a piece of one that begins with a header.
Result<std::vector<TarMember>> tar_members(const std::string& where, ByteView bytes);

}  // namespace holdfast

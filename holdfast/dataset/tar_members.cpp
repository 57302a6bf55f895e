#include "holdfast/dataset/tar_members.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "holdfast/base/checked.h"
#include "holdfast/base/number_text.h"

namespace holdfast {
namespace {

// The longest name or pax header that is read.
constexpr int64_t kMostText = 1 << 20;

struct Field {
  size_t begin, size;
};
constexpr Field kName{0, 100}, kSize{124, 12}, kChecksum{148, 8}, kMagic{257, 6},
    kPrefix{345, 155};
constexpr size_t kType = 156;

ByteView bytes_in(ByteView block, Field field) {
  return block.subspan(field.begin, field.size);
}

// Text up to the first NUL.
std::string text_in(ByteView block, Field field) {
  const std::string_view text = text_of(bytes_in(block, field));
  return std::string(text.substr(0, text.find('\0')));
}

// Octal digits with spaces or NULs around them, or GNU's binary form, whose first bit is
// set.
std::optional<int64_t> number_of(ByteView block, Field field) {
  const ByteView bytes = bytes_in(block, field);
  uint64_t value = 0;
  if (bytes[0] == std::byte{0x80}) {
    if (std::ranges::any_of(bytes.subspan(1, field.size - 9),
                            [](std::byte b) { return b != std::byte{0}; })) {
      return std::nullopt;
    }
    for (const std::byte byte : bytes.last(8)) value = value << 8 | static_cast<uint64_t>(byte);
  } else {
    std::string_view text = text_of(bytes);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    text = text.substr(0, text.find_first_of(std::string_view(" \0", 2)));
    for (const char c : text) {
      if (c < '0' || c > '7') return std::nullopt;
      value = value << 3 | static_cast<uint64_t>(c - '0');  // at most 36 bits
    }
  }
  if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(value);
}

// The sum of all bytes of a header, those of the sum itself counted as spaces.
int64_t sum_of(ByteView block) {
  int64_t sum = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const bool is_own = i >= kChecksum.begin && i < kChecksum.begin + kChecksum.size;
    sum += is_own ? ' ' : static_cast<int64_t>(block[i]);
  }
  return sum;
}

// A header, and what the headers before it say about the same member.
struct Header {
  char type = 0;
  int64_t size = 0;
  std::string name{};
  int64_t at = 0;
};
struct Extra {
  std::string name{};
  int64_t size = -1;
};

bool is_plain_file(const Header& header) {
  const bool has_bytes = header.type == '0' || header.type == '\0' || header.type == '7';
  return has_bytes && !header.name.ends_with('/');
}

// The next header; nullopt for a block of zeros, which ends the archive.
Result<std::optional<Header>> read_header(ScannedFile& archive) {
  Header header{.at = archive.at()};
  const Bytes block = HOLDFAST_TRY(archive.exactly(kTarBlock));
  if (std::ranges::all_of(block, [](std::byte b) { return b == std::byte{0}; })) {
    return std::optional<Header>();
  }
  if (number_of(block, kChecksum) != sum_of(block)) {
    return corrupt("{}: byte {} begins no member of a tar archive; expected a header with "
                   "the sum {}",
                   archive.name(), header.at, sum_of(block));
  }
  const std::optional<int64_t> size = number_of(block, kSize);
  if (!size) return corrupt("{}: the member at byte {} has no size", archive.name(), header.at);
  header.type = static_cast<char>(block[kType]);
  header.size = *size;
  header.name = text_in(block, kName);
  const std::string prefix = text_in(block, kPrefix);
  const bool is_posix = text_of(bytes_in(block, kMagic)) == std::string_view("ustar\0", 6);
  if (is_posix && !prefix.empty()) header.name = prefix + "/" + header.name;
  return std::optional(std::move(header));
}

Error is_sparse(const ScannedFile& archive, int64_t at) {
  return unsupported("{}: the member at byte {} is a sparse file; expected plain ones",
                     archive.name(), at);
}

// Skips the bytes that belong to a header. Fails before it reads them if they are cut short.
Result<void> skip_bytes(ScannedFile& archive, const Header& header, int64_t size) {
  const int64_t left = archive.size() - archive.at();
  const int64_t padded = TarMember{.size = std::min(size, left)}.padded();
  if (size <= left && padded <= left) return archive.skip(padded);
  return corrupt("{}: the member at byte {} has {} bytes; the archive ends at byte {}",
                 archive.name(), header.at, size, archive.size());
}

// Records "LENGTH KEY=VALUE\n".
Result<void> read_pax(const ScannedFile& archive, int64_t at, std::string_view rest, Extra& extra) {
  while (!rest.empty()) {
    const size_t space = std::min(rest.find(' '), rest.size());
    const auto length = number_in<int64_t>(rest.substr(0, space));
    const bool fits = length && *length > static_cast<int64_t>(space) + 1 &&
                      *length <= std::ssize(rest) &&
                      rest[static_cast<size_t>(*length) - 1] == '\n';
    if (!fits) return corrupt("{}: the pax header at byte {} is damaged", archive.name(), at);
    const auto whole = static_cast<size_t>(*length);
    const std::string_view record = rest.substr(space + 1, whole - space - 2);
    if (record.starts_with("path=")) extra.name = record.substr(5);
    if (record.starts_with("size=")) {
      extra.size = number_in<int64_t>(record.substr(5)).value_or(-1);
      if (extra.size < 0) {
        return corrupt("{}: the pax header at byte {} has the size {}", archive.name(), at,
                       record.substr(5, 40));
      }
    }
    if (record.starts_with("GNU.sparse.")) return is_sparse(archive, at);
    rest.remove_prefix(whole);
  }
  return {};
}

// The text of a long name or of a pax header.
Result<void> read_extra(ScannedFile& archive, const Header& header, Extra& extra) {
  if (header.size > kMostText) {
    return corrupt("{}: the name at byte {} has {} bytes, limit {}", archive.name(), header.at,
                   header.size, kMostText);
  }
  const Bytes bytes = HOLDFAST_TRY(archive.exactly(header.size));
  HOLDFAST_TRY(archive.skip(TarMember{.size = header.size}.padded() - header.size));
  const std::string_view text = text_of(bytes);
  if (header.type == 'x') return read_pax(archive, header.at, text, extra);
  extra.name = text.substr(0, text.find('\0'));
  return {};
}

}  // namespace

TarField tar_field_of(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == name.npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == name.npos || dot == base) return {};
  std::string field = name.substr(dot + 1);
  std::ranges::transform(field, field.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return {name.substr(0, dot), std::move(field)};
}

Result<std::optional<TarMember>> next_tar_member(ScannedFile& archive) {
  int64_t first = archive.at();  // the first header of the member
  Extra extra;
  while (archive.at() < archive.size()) {
    auto header = HOLDFAST_TRY(read_header(archive));
    if (!header) break;
    if (header->type == 'L' || header->type == 'x') {
      HOLDFAST_TRY(read_extra(archive, *header, extra));
      continue;
    }
    if (header->type == 'S') return is_sparse(archive, header->at);
    if (header->type == 'K' || header->type == 'g') {  // belongs to what follows
      HOLDFAST_TRY(skip_bytes(archive, *header, header->size));
      continue;
    }
    if (!extra.name.empty()) header->name = extra.name;
    if (extra.size >= 0) header->size = extra.size;
    // Folders and links say a size in some archives, but have no bytes.
    const bool has_none = header->type >= '1' && header->type <= '6';
    HOLDFAST_TRY(skip_bytes(archive, *header, has_none ? 0 : header->size));
    if (is_plain_file(*header)) {
      return std::optional(TarMember{first, header->at + kTarBlock, header->size, header->name});
    }
    extra = {};
    first = archive.at();
  }
  return std::optional<TarMember>();
}

Result<std::vector<TarMember>> tar_members(const std::string& where, ByteView bytes) {
  const MemorySource source(where, copy_of(bytes));
  ScannedFile archive(source, {});
  std::vector<TarMember> members;
  while (auto member = HOLDFAST_TRY(next_tar_member(archive))) {
    members.push_back(std::move(*member));
  }
  return members;
}

}  // namespace holdfast

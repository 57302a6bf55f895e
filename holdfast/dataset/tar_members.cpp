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

bool is_plain_file(char type) { return type == '0' || type == '\0' || type == '7'; }

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

Result<TarHeaders::Next> TarHeaders::add_header(int64_t at, ByteView block) {
  if (std::ranges::all_of(block, [](std::byte b) { return b == std::byte{0}; })) {
    return Next::kEnd;
  }
  if (number_of(block, kChecksum) != sum_of(block)) {
    return corrupt("{}: byte {} begins no member of a tar archive; expected a header with "
                   "the sum {}",
                   where_, at, sum_of(block));
  }
  const std::optional<int64_t> size = number_of(block, kSize);
  if (!size || *size > INT64_MAX - at - 2 * kTarBlock) {
    return corrupt("{}: the member at byte {} has no size", where_, at);
  }
  type_ = static_cast<char>(block[kType]);
  size_ = *size;
  if (first_header_ < 0) first_header_ = at;
  if (type_ == 'L' || type_ == 'x') {
    if (size_ <= kMostText) return Next::kText;
    return corrupt("{}: the name at byte {} has {} bytes, limit {}", where_, at, size_,
                   kMostText);
  }
  if (type_ == 'K' || type_ == 'g') return Next::kSkipped;  // belongs to what follows
  if (type_ == 'S') {
    return unsupported("{}: the member at byte {} is a sparse file; expected plain ones",
                       where_, at);
  }
  std::string name = text_in(block, kName);
  const std::string prefix = text_in(block, kPrefix);
  const bool is_posix = text_of(bytes_in(block, kMagic)) == std::string_view("ustar\0", 6);
  if (is_posix && !prefix.empty()) name = prefix + "/" + name;
  if (!long_name_.empty()) name = long_name_;
  if (long_size_ >= 0) size_ = long_size_;
  const int64_t header = std::exchange(first_header_, -1);
  long_name_.clear();
  long_size_ = -1;
  if (size_ > INT64_MAX - at - 2 * kTarBlock) {
    return corrupt("{}: the member at byte {} has {} bytes", where_, at, size_);
  }
  if (is_plain_file(type_) && !name.ends_with('/')) {
    member_ = {.header = header, .begin = at + kTarBlock, .size = size_, .name = name};
    return Next::kMember;
  }
  // Folders and links say a size in some archives, but have no bytes.
  if (type_ >= '1' && type_ <= '6') size_ = 0;
  return Next::kSkipped;
}

Result<void> TarHeaders::add_text(ByteView text) {
  if (type_ == 'x') return add_pax(text);
  const std::string_view name = text_of(text);
  long_name_ = name.substr(0, name.find('\0'));
  return {};
}

// Records "LENGTH KEY=VALUE\n".
Result<void> TarHeaders::add_pax(ByteView text) {
  std::string_view rest = text_of(text);
  while (!rest.empty()) {
    const size_t space = rest.find(' ');
    const auto length = number_in<int64_t>(rest.substr(0, std::min(space, rest.size())));
    const bool fits = length && space != rest.npos && *length > std::ssize(rest.substr(0, space)) + 1 &&
                      *length <= std::ssize(rest) &&
                      rest[static_cast<size_t>(*length) - 1] == '\n';
    if (!fits) {
      return corrupt("{}: the pax header at byte {} is damaged", where_, first_header_);
    }
    const auto whole = static_cast<size_t>(*length);
    const std::string_view record = rest.substr(space + 1, whole - space - 2);
    if (record.starts_with("path=")) long_name_ = record.substr(5);
    if (record.starts_with("size=")) {
      const auto size = number_in<int64_t>(record.substr(5));
      if (!size || *size < 0) {
        return corrupt("{}: the pax header at byte {} has the size {}", where_, first_header_,
                       record.substr(5, 40));
      }
      long_size_ = *size;
    }
    if (record.starts_with("GNU.sparse.")) {
      return unsupported("{}: the member at byte {} is a sparse file; expected plain ones",
                         where_, first_header_);
    }
    rest.remove_prefix(whole);
  }
  return {};
}

Result<std::vector<TarMember>> tar_members(const std::string& where, ByteView bytes) {
  std::vector<TarMember> members;
  TarHeaders headers(where);
  int64_t at = 0;
  const auto left = [&] { return std::ssize(bytes) - at; };
  while (left() >= kTarBlock) {
    const ByteView rest = bytes.subspan(static_cast<size_t>(at));
    const auto next = HOLDFAST_TRY(headers.add_header(at, rest.first(kTarBlock)));
    if (next == TarHeaders::Next::kEnd) break;
    at += kTarBlock;
    if (headers.size() > left()) {
      return corrupt("{}: the member at byte {} has {} bytes; the archive ends after {}",
                     where, at - kTarBlock, headers.size(), left());
    }
    if (next == TarHeaders::Next::kText) {
      HOLDFAST_TRY(headers.add_text(
          rest.subspan(kTarBlock, static_cast<size_t>(headers.size()))));
    }
    if (next == TarHeaders::Next::kMember) members.push_back(headers.member());
    at += std::min(headers.padded(), left());
  }
  return members;
}

}  // namespace holdfast

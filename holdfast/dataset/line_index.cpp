// Finds the lines of a file of text.
#include <algorithm>
#include <cstring>

#include "holdfast/dataset/sample_table.h"

namespace holdfast {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::byte byte) {
  return byte == std::byte{' '} || byte == std::byte{'\t'} || byte == std::byte{'\r'};
}

class LineScanner {
 public:
  LineScanner(const ScannedFile& file, const AppendWord& append)
      : file_(file), append_(append) {}

  // Bytes that begin at this offset of the file.
  Result<void> add(int64_t at, ByteView block) {
    while (!block.empty()) {
      const void* end = std::memchr(block.data(), '\n', block.size());
      if (end == nullptr) {
        note(block);
        return check_length(at + std::ssize(block));
      }
      const auto length =
          static_cast<size_t>(static_cast<const std::byte*>(end) - block.data());
      note(block.first(length));
      HOLDFAST_TRY(end_line(at + static_cast<int64_t>(length)));
      begin_ = at + static_cast<int64_t>(length) + 1;
      at = begin_;
      block = block.subspan(length + 1);
    }
    return {};
  }

  void skip_mark() { begin_ = static_cast<int64_t>(kByteOrderMark.size()); }

  Result<void> finish() {
    HOLDFAST_TRY(end_line(file_.size()));
    HOLDFAST_TRY(append_line(file_.size()));
    return append_(file_.size());
  }

 private:
  // Bytes of a line, without its LF.
  void note(ByteView part) {
    if (part.empty()) return;
    if (blank_) blank_ = std::ranges::all_of(part, is_blank);
    ends_with_return_ = part.back() == std::byte{'\r'};
  }

  // The line's last byte is the one before `end`.
  Result<void> end_line(int64_t end) {
    HOLDFAST_TRY(check_length(end));
    if (!blank_) {
      HOLDFAST_TRY(append_line(begin_));
      last_ = {begin_, end - (ends_with_return_ ? 1 : 0)};
    }
    blank_ = true;
    ends_with_return_ = false;
    return {};
  }

  Result<void> check_length(int64_t end) const {
    if (end - begin_ <= kMostSample) return {};
    return unsupported("{}: the line at byte {} is longer than 1 GiB; expected lines of "
                       "text",
                       file_.name(), begin_);
  }

  // Appends the line before the one that begins at `next`, if there is one.
  Result<void> append_line(int64_t next) {
    if (last_.end == 0) return {};
    const int64_t blank = next - last_.end;
    if (blank > kMostBlank) {
      return unsupported("{}: after byte {} are {} bytes of blank lines, limit {}",
                         file_.name(), last_.end, blank, kMostBlank);
    }
    return append_(last_.begin | blank << kStartBits);
  }

  const ScannedFile& file_;
  const AppendWord& append_;
  int64_t begin_ = 0;        // of the line that is read
  bool blank_ = true;        // so far
  bool ends_with_return_ = false;
  SampleRange last_{};       // the newest line that is a sample, not appended yet
};

}  // namespace

Result<void> scan_lines(ScannedFile& file, const AppendWord& append) {
  if (file.size() >= int64_t{1} << kStartBits) {
    return unsupported("{}: {} bytes; expected less than 2^{}", file.name(), file.size(),
                       kStartBits);
  }
  LineScanner scanner(file, append);
  while (true) {
    int64_t at = file.at();
    ByteView block = HOLDFAST_TRY(file.some());
    if (block.empty()) return scanner.finish();
    if (at == 0 && text_of(block).starts_with(kByteOrderMark)) {
      scanner.skip_mark();
      block = block.subspan(kByteOrderMark.size());
      at += static_cast<int64_t>(kByteOrderMark.size());
    }
    HOLDFAST_TRY(scanner.add(at, block));
  }
}

}  // namespace holdfast

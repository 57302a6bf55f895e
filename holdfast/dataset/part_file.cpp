#include "holdfast/dataset/part_file.h"

#include <algorithm>
#include <cstring>

namespace holdfast {
namespace {

// Bytes of a part that are asked for.
class Window {
 public:
  Window(int64_t offset, ByteSpan into) : offset_(offset), into_(into) {}

  int64_t end() const { return offset_ + std::ssize(into_); }

  // The memory for bytes [begin, end) of the part: for those of them that are asked for.
  ByteSpan memory(int64_t begin, int64_t end) const {
    begin = std::max(begin, offset_);
    end = std::min(end, this->end());
    if (begin >= end) return {};
    return into_.subspan(static_cast<size_t>(begin - offset_), static_cast<size_t>(end - begin));
  }

  // Copies what is asked for of a text at `at` of the part.
  void put(int64_t at, std::string_view text) const {
    const ByteSpan into = memory(at, at + std::ssize(text));
    if (into.empty()) return;
    const auto skipped = static_cast<size_t>(std::max<int64_t>(offset_ - at, 0));
    std::memcpy(into.data(), text.data() + skipped, into.size());
  }

 private:
  const int64_t offset_;
  const ByteSpan into_;
};

}  // namespace

Result<std::shared_ptr<const MountedFile>> PartFile::create(
    const Corpus& corpus, std::span<const int64_t> samples) {
  std::shared_ptr<PartFile> part(new PartFile(corpus, !std::ranges::is_sorted(samples)));
  std::vector<Piece>& pieces = part->pieces_;
  const int64_t separator = std::ssize(corpus.separator());
  int64_t at = 0;
  for (const FileRange& range : HOLDFAST_TRY(corpus.stored_ranges_of(samples))) {
    const bool follows = !pieces.empty() && pieces.back().file == range.file &&
                         range.begin - pieces.back().from == at - pieces.back().begin;
    if (!follows) pieces.push_back({at, range.begin, range.file});
    at += range.size() + separator;
  }
  pieces.push_back({.begin = at});
  return std::shared_ptr<const MountedFile>(std::move(part));
}

std::vector<PartFile::Piece>::const_iterator PartFile::piece_with(int64_t offset) const {
  return std::ranges::upper_bound(pieces_, offset, {}, &Piece::begin) - 1;
}

std::optional<FileRange> PartFile::place_of(int64_t offset, size_t count) const {
  if (offset >= pieces_.back().begin) return std::nullopt;
  const auto piece = piece_with(offset);
  const int64_t from = piece->from + offset - piece->begin;
  const FileRange place{piece->file, from, from + static_cast<int64_t>(count)};
  if (place.size() > end_of(piece) - offset) return std::nullopt;
  return place;
}

Result<size_t> PartFile::read(int64_t offset, ByteSpan into) const {
  if (offset >= size()) return size_t{0};
  into = into.first(static_cast<size_t>(std::min<int64_t>(std::ssize(into), size() - offset)));
  const Window window(offset, into);
  window.put(pieces_.back().begin, corpus_.trailer());
  std::vector<SampleRead> reads;
  auto piece = piece_with(offset);
  for (; piece + 1 != pieces_.end() && piece->begin < window.end(); ++piece) {
    const int64_t end = end_of(piece);
    window.put(end, corpus_.separator());
    const ByteSpan memory = window.memory(piece->begin, end);
    if (memory.empty()) continue;
    const int64_t from = piece->from + std::max<int64_t>(offset - piece->begin, 0);
    reads.push_back({{piece->file, from, from + std::ssize(memory)}, memory});
  }
  HOLDFAST_TRY(corpus_.read(reads));
  return into.size();
}

}  // namespace holdfast

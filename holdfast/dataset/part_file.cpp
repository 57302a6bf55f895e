#include "holdfast/dataset/part_file.h"

#include <algorithm>
#include <cstring>

namespace holdfast {

Result<std::shared_ptr<const MountedFile>> PartFile::create(const Corpus& corpus,
                                                            std::vector<int64_t> samples) {
  std::shared_ptr<PartFile> part(new PartFile(corpus, std::move(samples)));
  if (corpus.fixed_size() == 0) {
    const int64_t between = std::ssize(corpus.separator());
    part->begins_.push_back(0);
    for (const FileRange& range : HOLDFAST_TRY(corpus.stored_ranges_of(part->samples_))) {
      part->begins_.push_back(part->begins_.back() + range.size() + between);
    }
  }
  return std::shared_ptr<const MountedFile>(std::move(part));
}

int64_t PartFile::begin_of(size_t number) const {
  return begins_.empty() ? static_cast<int64_t>(number) * corpus_.fixed_size()
                         : begins_[number];
}

int64_t PartFile::size() const {
  return begin_of(samples_.size()) + std::ssize(corpus_.trailer());
}

size_t PartFile::sample_at(int64_t offset) const {
  if (begins_.empty()) return static_cast<size_t>(offset / corpus_.fixed_size());
  const auto after = std::ranges::upper_bound(begins_, offset);
  return static_cast<size_t>(after - begins_.begin()) - 1;
}

namespace {

// Bytes [begin, end) of a part, which lie `shift` further behind in a file.
struct Piece {
  size_t file = 0;
  int64_t shift = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Bytes of a part that are asked for.
class Window {
 public:
  Window(int64_t offset, ByteSpan into) : offset_(offset), into_(into) {}

  int64_t end() const { return offset_ + std::ssize(into_); }

  // Adds what lies at `at` of the part and at `from` of a file. Samples that follow each
  // other in the file, too, become one piece with what separates them: that is the same byte.
  void add(int64_t at, const FileRange& from) {
    const Piece piece{from.file, from.begin - at, std::max(at, offset_),
                      std::min(at + from.size(), end())};
    if (piece.begin >= piece.end) return;
    const bool follows = !pieces_.empty() && pieces_.back().file == piece.file &&
                         pieces_.back().shift == piece.shift;
    if (follows) {
      pieces_.back().end = piece.end;
    } else {
      pieces_.push_back(piece);
    }
  }

  // Copies what is asked for of a text at `at` of the part.
  void put(int64_t at, std::string_view text) {
    const int64_t from = std::max(at, offset_), to = std::min(at + std::ssize(text), end());
    if (from >= to) return;
    std::memcpy(into_.data() + (from - offset_), text.data() + (from - at),
                static_cast<size_t>(to - from));
  }

  std::vector<SampleRead> reads() const {
    std::vector<SampleRead> reads;
    reads.reserve(pieces_.size());
    for (const Piece& piece : pieces_) {
      reads.push_back({{piece.file, piece.begin + piece.shift, piece.end + piece.shift},
                       into_.subspan(static_cast<size_t>(piece.begin - offset_),
                                     static_cast<size_t>(piece.end - piece.begin))});
    }
    return reads;
  }

 private:
  const int64_t offset_;
  const ByteSpan into_;
  std::vector<Piece> pieces_{};
};

}  // namespace

Result<size_t> PartFile::read(int64_t offset, ByteSpan into) const {
  if (offset >= size()) return size_t{0};
  into = into.first(static_cast<size_t>(
      std::min<int64_t>(std::ssize(into), size() - offset)));
  Window window(offset, into);
  const int64_t trailer_at = begin_of(samples_.size());
  window.put(trailer_at, corpus_.trailer());
  const size_t first = offset < trailer_at ? sample_at(offset) : samples_.size();
  size_t last = first;
  while (last < samples_.size() && begin_of(last) < window.end()) ++last;
  const auto some = std::span(samples_).subspan(first, last - first);
  int64_t at = first < samples_.size() ? begin_of(first) : trailer_at;
  for (const FileRange& whole : HOLDFAST_TRY(corpus_.stored_ranges_of(some))) {
    window.add(at, whole);
    window.put(at + whole.size(), corpus_.separator());
    at += whole.size() + std::ssize(corpus_.separator());
  }
  std::vector<SampleRead> reads = window.reads();
  HOLDFAST_TRY(corpus_.read(reads));
  return into.size();
}

}  // namespace holdfast

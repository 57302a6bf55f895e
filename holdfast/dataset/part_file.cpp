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
    for (const int64_t sample : part->samples_) {
      const FileRange range = HOLDFAST_TRY(corpus.stored_range_of(sample));
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

Result<size_t> PartFile::read(int64_t offset, ByteSpan into) const {
  if (offset >= size()) return size_t{0};
  into = into.first(static_cast<size_t>(
      std::min<int64_t>(std::ssize(into), size() - offset)));
  const int64_t last = offset + std::ssize(into);
  std::vector<SampleRead> reads;
  // Copies what lies in the range of [begin, begin + size) of the part.
  const auto inside = [&](int64_t begin, int64_t size) {
    const int64_t from = std::max(begin, offset);
    const int64_t to = std::min(begin + size, last);
    return std::pair(from - begin, std::max<int64_t>(to - from, 0));
  };
  const int64_t trailer_at = begin_of(samples_.size());
  if (const auto [skip, count] = inside(trailer_at, std::ssize(corpus_.trailer())); count > 0) {
    std::memcpy(into.data() + (trailer_at + skip - offset), corpus_.trailer().data() + skip,
                static_cast<size_t>(count));
  }
  const size_t first = offset < trailer_at ? sample_at(offset) : samples_.size();
  for (size_t number = first; number < samples_.size() && begin_of(number) < last; ++number) {
    const FileRange whole = HOLDFAST_TRY(corpus_.stored_range_of(samples_[number]));
    const auto place = [&](int64_t at, int64_t count) {
      return into.subspan(static_cast<size_t>(at - offset), static_cast<size_t>(count));
    };
    if (const auto [skip, count] = inside(begin_of(number), whole.size()); count > 0) {
      const int64_t begin = whole.begin + skip;
      reads.push_back({{whole.file, begin, begin + count},
                       place(begin_of(number) + skip, count)});
    }
    const std::string_view end = corpus_.separator();
    const int64_t end_at = begin_of(number) + whole.size();
    if (const auto [skip, count] = inside(end_at, std::ssize(end)); count > 0) {
      std::memcpy(place(end_at + skip, count).data(), end.data() + skip,
                  static_cast<size_t>(count));
    }
  }
  HOLDFAST_TRY(corpus_.read(reads));
  return into.size();
}

}  // namespace holdfast

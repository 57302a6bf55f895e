#include "holdfast/dataset/mount_tree.h"

#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/base/number_text.h"
#include "holdfast/dataset/part_file.h"

namespace holdfast {
namespace {

constexpr std::string_view kList = "list.txt";
// A part has so many batches, or fewer so that it has not more samples than kMostSamples.
constexpr int64_t kBatches = 1024;
constexpr int64_t kMostSamples = int64_t{1} << 20;
constexpr size_t kKept = 8;  // parts in memory
// Positions are far from 2^63, so that sums of a few need no checks.
constexpr int64_t kLastCursor = int64_t{1} << 60;

// Takes "from-" off the front of the text and the number behind it, with leading zeros.
std::optional<int64_t> take_number(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return std::nullopt;
  text.remove_prefix(word.size());
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0) return std::nullopt;
  const size_t zeros = std::min(text.find_first_not_of('0'), digits - 1);
  const auto number = number_in<int64_t>(text.substr(zeros, digits - zeros));
  text.remove_prefix(digits);
  return number;
}

std::string folder_name(int64_t cursor, int64_t workers) {
  return fmt::format("from-{:012}-of-{}", cursor, workers);
}

// The bytes of a text that was made.
class TextFile : public MountedFile {
 public:
  explicit TextFile(std::string text) : text_(std::move(text)) {}

  int64_t size() const override { return std::ssize(text_); }
  Result<size_t> read(int64_t offset, ByteSpan into) const override {
    const auto from = static_cast<size_t>(std::min(offset, size()));
    return text_.copy(reinterpret_cast<char*>(into.data()), into.size(), from);
  }

 private:
  const std::string text_;
};

}  // namespace

// What a path names.
struct MountTree::Place {
  enum Level { kTop, kCurrent, kFrom, kWorker, kListFile, kPart };

  Level level = kTop;
  int64_t cursor = 0;
  int64_t workers = 0;
  int64_t worker = 0;
  int64_t part = 0;
};

Result<std::unique_ptr<MountTree>> MountTree::create(const Corpus& corpus,
                                                     SampleOptions options,
                                                     Cursor current) {
  options.samples = corpus.samples();
  if (options.batch > kMostSamples || options.samples > kLastCursor) {
    return invalid("mount: batches of {} of {} samples, limits {} and {}", options.batch,
                   options.samples, kMostSamples, kLastCursor);
  }
  SampleSequence sequence = HOLDFAST_TRY(SampleSequence::create(options));
  return std::unique_ptr<MountTree>(
      new MountTree(corpus, std::move(sequence), std::move(current)));
}

std::optional<MountTree::Place> MountTree::parse(const std::string& path) const {
  std::string_view rest = path;
  Place place;
  if (!rest.starts_with('/')) return std::nullopt;
  rest.remove_prefix(1);
  if (rest.empty()) return place;
  const bool is_current = rest.starts_with("current");
  if (is_current) {
    rest.remove_prefix(std::string_view("current").size());
    place.level = Place::kCurrent;
  } else {
    const auto cursor = take_number(rest, "from-");
    if (!cursor) return std::nullopt;
    place.cursor = *cursor;
    place.level = Place::kFrom;
  }
  const auto workers = take_number(rest, "-of-");
  if (!workers || *workers < 1) return std::nullopt;
  place.workers = *workers;
  if (rest.empty()) return place;
  const auto worker = take_number(rest, "/worker-");
  if (is_current || !worker || *worker >= *workers) return std::nullopt;
  place.worker = *worker;
  place.level = Place::kWorker;
  if (rest.empty()) return place;
  if (rest == "/list.txt") {
    place.level = Place::kListFile;
    return place;
  }
  const std::string name(rest.substr(std::min<size_t>(rest.size(), 1)));
  const auto part = take_number(rest, "/part-");
  if (!part || name != part_name(*part)) return std::nullopt;
  place.part = *part;
  place.level = Place::kPart;
  return place;
}

Result<MountTree::Place> MountTree::located(const std::string& path) const {
  const std::optional<Place> place = parse(path);
  const int64_t batch = sequence_.options().batch;
  if (place && place->workers > batch) {
    return not_found("{}: {} workers for batches of {} samples; expected at most one worker "
                     "for each sample",
                     path, place->workers, batch);
  }
  const bool is_there = place && (place->level != Place::kCurrent || current_) &&
                        place->cursor <= kLastCursor &&
                        (place->level != Place::kPart || place->part < parts_of(*place));
  if (is_there) return *place;
  return not_found("{}: no such file", path);
}

Positions MountTree::rest_of(const Place& place) const {
  const SampleOptions& options = sequence_.options();
  const int64_t first = sequence_.batch_at(place.cursor).value().first;
  const int64_t left = options.samples - first % options.samples;
  switch (options.end) {
    case EpochEnd::kShort: return {first, first + left};
    case EpochEnd::kDrop: return {first, first + left / options.batch * options.batch};
    case EpochEnd::kJoin: break;
  }
  return {first, first + divide_up(left, options.batch) * options.batch};
}

namespace {

int64_t positions_in_a_part(int64_t batch) {
  return batch * std::clamp<int64_t>(kMostSamples / batch, 1, kBatches);
}

}  // namespace

int64_t MountTree::parts_of(const Place& place) const {
  return divide_up(rest_of(place).size(), positions_in_a_part(sequence_.options().batch));
}

Positions MountTree::positions_of(const Place& place, int64_t part) const {
  const Positions rest = rest_of(place);
  const int64_t size = positions_in_a_part(sequence_.options().batch);
  const int64_t first = rest.first + part * size;
  return {first, first + std::min(size, rest.last - first)};
}

int64_t MountTree::share_in(const Place& place, Positions positions) const {
  const int64_t batch = sequence_.options().batch;
  const auto share = [&](int64_t size) {
    return share_of({0, size}, place.worker, place.workers).size();
  };
  return positions.size() / batch * share(batch) + share(positions.size() % batch);
}

std::vector<int64_t> MountTree::samples_of(const Place& place, Positions positions) const {
  std::vector<int64_t> samples;
  const int64_t batch = sequence_.options().batch;
  samples.reserve(static_cast<size_t>(share_in(place, positions)));
  while (positions.first < positions.last) {
    const int64_t size = std::min(batch, positions.last - positions.first);
    const Positions share =
        share_of({positions.first, positions.first + size}, place.worker, place.workers);
    const std::vector<int64_t> some = sequence_.indices(share);
    samples.insert(samples.end(), some.begin(), some.end());
    positions.first += size;
  }
  return samples;
}

std::string MountTree::part_name(int64_t part) const {
  std::string ending = corpus_.files().front().extension();
  // TensorFlow's shards end with .tfrecord-00003-of-00010.
  if (ending.starts_with(".tfrecord-")) ending = ".tfrecord";
  return fmt::format("part-{:05}{}", part, ending);
}

std::string MountTree::list_text(const Place& place) const {
  std::string text = "# part, positions from and to, samples of this worker\n";
  for (int64_t part = 0; part < parts_of(place); ++part) {
    const Positions positions = positions_of(place, part);
    text += fmt::format("{} {} {} {}\n", part_name(part), positions.first, positions.last,
                        share_in(place, positions));
  }
  return text + fmt::format("next {}\n", folder_name(rest_of(place).last, place.workers));
}

Result<MountEntryKind> MountTree::find(const std::string& path) const {
  const Place place = HOLDFAST_TRY(located(path));
  if (place.level == Place::kCurrent) return MountEntryKind::kLink;
  return place.level < Place::kListFile ? MountEntryKind::kFolder : MountEntryKind::kFile;
}

Result<std::vector<MountEntry>> MountTree::list(const std::string& path) const {
  const Place place = HOLDFAST_TRY(located(path));
  std::vector<MountEntry> entries;
  if (place.level == Place::kTop) {
    if (current_) entries.push_back({"current-of-1", MountEntryKind::kLink});
    entries.push_back({folder_name(0, 1), MountEntryKind::kFolder});
  } else if (place.level == Place::kFrom) {
    for (int64_t worker = 0; worker < place.workers; ++worker) {
      entries.push_back({fmt::format("worker-{}", worker), MountEntryKind::kFolder});
    }
  } else if (place.level == Place::kWorker) {
    entries.push_back({std::string(kList), MountEntryKind::kFile});
    for (int64_t part = 0; part < parts_of(place); ++part) {
      entries.push_back({part_name(part), MountEntryKind::kFile});
    }
  } else {
    return not_found("{}: no such folder", path);
  }
  return entries;
}

Result<std::string> MountTree::target_of(const std::string& path) const {
  const Place place = HOLDFAST_TRY(located(path));
  if (place.level != Place::kCurrent) return not_found("{}: is no link", path);
  return folder_name(HOLDFAST_TRY(current_()), place.workers);
}

Result<std::shared_ptr<const MountedFile>> MountTree::make(const Place& place) const {
  if (place.level == Place::kListFile) {
    return std::shared_ptr<const MountedFile>(
        std::make_shared<TextFile>(list_text(place)));
  }
  return PartFile::create(corpus_, samples_of(place, positions_of(place, place.part)));
}

Result<std::shared_ptr<const MountedFile>> MountTree::open(const std::string& path) const {
  const Place place = HOLDFAST_TRY(located(path));
  if (place.level < Place::kListFile) return not_found("{}: is no file", path);
  {
    const MutexLock lock(mutex_);
    const auto found = std::ranges::find(newest_, path, [](const auto& one) {
      return one.first;
    });
    if (found != newest_.end()) {
      newest_.splice(newest_.begin(), newest_, found);
      return newest_.front().second;
    }
  }
  auto file = HOLDFAST_TRY(make(place));
  const MutexLock lock(mutex_);
  newest_.emplace_front(path, file);
  if (newest_.size() > kKept) newest_.pop_back();
  return file;
}

}  // namespace holdfast

#include "holdfast/dataset/read_ranges.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace holdfast {
namespace {

// Reading so many bytes that nobody wants takes no longer than another read would, if the
// bytes come from a disk or a store, and from memory.
constexpr int64_t kDiskGap = 64 << 10, kMemoryGap = 4 << 10;
// The most that is read at once with gaps, so that the memory for it stays small.
constexpr int64_t kMostRun = 1 << 20;
// A thread for fewer reads costs more than it saves.
constexpr size_t kLeastReads = 4;
// How many runs a thread takes at a time, if the bytes come from memory: each of them takes
// about a microsecond.
constexpr size_t kMemoryRuns = 8;
// A read that takes longer on average, and for which the thread slept, has waited for a disk or
// a store. Threads that share their processors with others take longer, too, but do not sleep.
constexpr Duration kFromCache = std::chrono::microseconds(20);
// How long threads stay awake for the next batch.
constexpr Duration kLinger = std::chrono::microseconds(50);

// How often this thread has slept.
int64_t sleeps() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// Reads that lie so near to each other that one read serves them all.
using Run = std::span<const SampleRead>;

bool joins(const FileRange& first, const FileRange& last, const FileRange& next,
           int64_t gap) {
  return next.file == last.file && next.begin >= last.begin && next.begin - last.end < gap &&
         std::max(last.end, next.end) - first.begin <= kMostRun;
}

void sort_reads(std::span<SampleRead> reads, bool by_place) {
  if (by_place) {
    std::ranges::sort(reads, {}, [](const SampleRead& read) {
      return std::pair(read.from.file, read.from.begin);
    });
    return;
  }
  const auto by_file = [](const SampleRead& read) { return read.from.file; };
  if (!std::ranges::is_sorted(reads, {}, by_file)) std::ranges::sort(reads, {}, by_file);
}

// Joins reads that follow each other.
std::vector<Run> runs_of(std::span<const SampleRead> reads, int64_t gap) {
  std::vector<Run> runs;
  runs.reserve(reads.size());
  size_t begin = 0;
  for (size_t i = 1; i <= reads.size(); ++i) {
    const bool is_last = i == reads.size();
    if (!is_last && joins(reads[begin].from, reads[i - 1].from, reads[i].from, gap)) continue;
    runs.push_back(reads.subspan(begin, i - begin));
    begin = i;
  }
  return runs;
}

// `memory` is for runs of several reads; it only grows.
Result<void> read_run(const Source& source, Run run, Bytes& memory) {
  if (run.size() == 1) return source.read(run[0].from.begin, run[0].into);
  const int64_t begin = run.front().from.begin;
  int64_t end = begin;
  for (const SampleRead& one : run) end = std::max(end, one.from.end);
  const auto size = static_cast<size_t>(end - begin);
  if (memory.size() < size) memory.resize(size);
  HOLDFAST_TRY(source.read(begin, ByteSpan(memory).first(size)));
  for (const SampleRead& one : run) {
    if (one.into.empty()) continue;
    std::memcpy(one.into.data(), memory.data() + (one.from.begin - begin), one.into.size());
  }
  return {};
}

}  // namespace

// The runs of one call of read(). A thread that comes late finds nothing left to do. So the
// caller waits only for threads that are in the middle of a run, and its memory is used no
// more after that.
class RangeReader::Job {
 public:
  // Threads take `step` runs at a time.
  Job(RangeReader& reader, std::vector<Run> runs, size_t step)
      : reader_(reader),
        runs_(std::move(runs)),
        step_(step),
        left_(static_cast<int>(runs_.size())) {}

  // Reads until no run is left that nobody has begun. Returns how many were read here.
  int work();
  Result<void> wait();

 private:
  RangeReader& reader_;
  const std::vector<Run> runs_;
  const size_t step_;
  std::atomic<size_t> next_ = 0;
  std::atomic<int> left_;  // that are not finished
  std::atomic<bool> has_failed_ = false;
  Mutex mutex_;
  std::optional<Error> failed_ HOLDFAST_GUARDED_BY(mutex_);  // the first
};

int RangeReader::Job::work() {
  int done = 0;
  size_t file = 0;
  std::shared_ptr<const FileSource> source;  // runs are sorted by their files
  Bytes memory;
  const auto leave_file = [&]() -> Result<void> {
    return source == nullptr ? Result<void>() : reader_.check_unchanged(file, *source);
  };
  const auto read = [&](Run run) -> Result<void> {
    const size_t number = run.front().from.file;
    if (source == nullptr || number != file) {
      HOLDFAST_TRY(leave_file());
      source = HOLDFAST_TRY(reader_.file(number));
      file = number;
    }
    return read_run(*source, run, memory);
  };
  const auto note = [&](const Result<void>& outcome) {
    if (outcome.ok()) return;
    const MutexLock lock(mutex_);
    if (!has_failed_.exchange(true)) failed_ = outcome.error();
  };
  for (size_t i = next_.fetch_add(step_); i < runs_.size(); i = next_.fetch_add(step_)) {
    for (const Run& run : std::span(runs_).subspan(i, std::min(step_, runs_.size() - i))) {
      if (!has_failed_) note(read(run));
      ++done;
    }
  }
  note(leave_file());
  if (done > 0 && (left_ -= done) == 0) left_.notify_all();
  return done;
}

Result<void> RangeReader::Job::wait() {
  for (int left = left_; left != 0; left = left_) left_.wait(left);
  const MutexLock lock(mutex_);
  return failed_ ? Result<void>(*failed_) : Result<void>();
}

RangeReader::~RangeReader() {
  const MutexLock lock(mutex_);
  if (process_ != ::getpid()) static_cast<void>(pool_.release());
}

ThreadPool& RangeReader::pool() {
  const MutexLock lock(mutex_);
  if (const int here = ::getpid(); process_ != here) {
    static_cast<void>(pool_.release());  // its threads are those of another process
    pool_ = std::make_unique<ThreadPool>(ThreadPoolOptions{
        .threads = count_, .queue = 1024, .linger = kLinger});
    process_ = here;
  }
  return *pool_;
}

Result<std::shared_ptr<const FileSource>> RangeReader::file(size_t number) {
  const MutexLock lock(mutex_);
  if (const auto found = open_.find(number); found != open_.end()) return found->second;
  if (open_.size() >= kMostOpen) {
    // Any of them may be closed, because a shuffle reads all files alike.
    open_.erase(std::next(open_.begin(), static_cast<std::ptrdiff_t>(number % kMostOpen)));
  }
  std::shared_ptr<const FileSource> source =
      HOLDFAST_TRY(FileSource::open(env_, paths_[number]));
  const int64_t indexed = indexes_[number].header().file.bytes;
  if (source->size() != indexed) {
    return corrupt("{}: {} bytes, and {} when it was indexed; expected that nobody changes it "
                   "while it is read",
                   source->name(), source->size(), indexed);
  }
  HOLDFAST_TRY(check_unchanged(number, *source));
  open_.emplace(number, source);
  return source;
}

Result<void> RangeReader::check_unchanged(size_t number, const FileSource& source) const {
  const WallTime modified = HOLDFAST_TRY(source.modified());
  const WallTime indexed(std::chrono::nanoseconds(indexes_[number].header().file.modified));
  if (modified == indexed || modified == WallTime{}) return {};
  return corrupt("{}: was changed after it was indexed; expected that nobody changes it "
                 "while it is read",
                 source.name());
}

size_t RangeReader::others_for(size_t reads) const {
  // What is in the page cache is read at once, so that more threads than cores only cost time.
  static const size_t cores = std::thread::hardware_concurrency();
  const size_t most = std::min(reads / kLeastReads, static_cast<size_t>(count_));
  const size_t threads = waits_for_disk_ ? most : std::min(most, cores);
  return threads - (threads > 0 ? 1 : 0);
}

Result<void> RangeReader::read(std::span<SampleRead> reads) {
  const bool waits = waits_for_disk_;
  // Samples of a shuffle seldom lie near each other. Then the order of their reads matters only
  // to a disk.
  sort_reads(reads, waits);
  std::vector<Run> runs = runs_of(reads, waits ? kDiskGap : kMemoryGap);
  const size_t others = others_for(runs.size());
  const auto job = std::make_shared<Job>(*this, std::move(runs), waits ? 1 : kMemoryRuns);
  for (size_t i = 0; i < others; ++i) pool().submit([job] { job->work(); });
  const int64_t slept = sleeps();
  const Instant begin = env_.now();
  const int done = job->work();
  if (done > 0) {
    waits_for_disk_ = env_.now() - begin > done * kFromCache && sleeps() != slept;
  }
  return job->wait();
}

}  // namespace holdfast

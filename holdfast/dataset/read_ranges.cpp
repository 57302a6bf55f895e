#include "holdfast/dataset/read_ranges.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace holdfast {
namespace {

// Reading so many bytes that nobody wants takes no longer than another read would.
constexpr int64_t kMostGap = 64 << 10;
// The most that is read at once with gaps, so that the memory for it stays small.
constexpr int64_t kMostRun = 1 << 20;

// Reads that lie so near to each other that one read serves them all.
using Run = std::span<const SampleRead>;

bool joins(const FileRange& first, const FileRange& last, const FileRange& next) {
  return next.file == last.file && next.begin - last.end < kMostGap &&
         std::max(last.end, next.end) - first.begin <= kMostRun;
}

// The reads must be sorted.
std::vector<Run> runs_of(std::span<const SampleRead> reads) {
  std::vector<Run> runs;
  size_t begin = 0;
  for (size_t i = 1; i <= reads.size(); ++i) {
    if (i < reads.size() && joins(reads[begin].from, reads[i - 1].from, reads[i].from)) {
      continue;
    }
    runs.push_back(reads.subspan(begin, i - begin));
    begin = i;
  }
  return runs;
}

// Reads with one thread. Runs are sorted by their files, so that a file is looked up once.
class Reader {
 public:
  explicit Reader(OpenFiles& files) : files_(files) {}

  Result<void> read(Run run) {
    const size_t file = run.front().from.file;
    if (source_ == nullptr || file != file_) {
      source_ = HOLDFAST_TRY(files_.file(file));
      file_ = file;
    }
    return read_run(*source_, run);
  }

 private:
  static Result<void> read_run(const Source& source, Run run);

  OpenFiles& files_;
  size_t file_ = 0;
  std::shared_ptr<const Source> source_{};
};

Result<void> Reader::read_run(const Source& source, Run run) {
  if (run.size() == 1) return source.read(run[0].from.begin, run[0].into);
  const int64_t begin = run.front().from.begin;
  int64_t end = begin;
  for (const SampleRead& one : run) end = std::max(end, one.from.end);
  const Bytes bytes = HOLDFAST_TRY(source.read_bytes(begin, end - begin));
  for (const SampleRead& one : run) {
    if (one.into.empty()) continue;
    std::memcpy(one.into.data(), bytes.data() + (one.from.begin - begin), one.into.size());
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const Source>> OpenFiles::file(size_t number) {
  const MutexLock lock(mutex_);
  if (const auto found = open_.find(number); found != open_.end()) return found->second;
  if (open_.size() >= kMostOpen) {
    // Which one is closed does not matter much: a shuffle reads all files alike.
    open_.erase(std::next(open_.begin(), static_cast<std::ptrdiff_t>(number % kMostOpen)));
  }
  std::shared_ptr<const Source> source =
      HOLDFAST_TRY(FileSource::open(env_, paths_[number]));
  const int64_t indexed = indexes_[number].header().file.bytes;
  if (source->size() != indexed) {
    return corrupt("{}: {} bytes, and {} when it was indexed; expected that nobody changes it "
                   "while it is read",
                   source->name(), source->size(), indexed);
  }
  open_.emplace(number, source);
  return source;
}

ReadThreads::~ReadThreads() {
  const MutexLock lock(mutex_);
  if (process_ != ::getpid()) static_cast<void>(pool_.release());
}

ThreadPool& ReadThreads::pool() {
  const MutexLock lock(mutex_);
  if (const int here = ::getpid(); process_ != here) {
    static_cast<void>(pool_.release());  // its threads are those of another process
    pool_ = std::make_unique<ThreadPool>(ThreadPoolOptions{.threads = count_, .queue = 1024});
    process_ = here;
  }
  return *pool_;
}

// Who takes part in one call of run(). A thread that comes when all is done does not.
class ReadThreads::Turn {
 public:
  bool begin() {
    const MutexLock lock(mutex_);
    if (!is_over_) ++active_;
    return !is_over_;
  }
  void end() {
    const MutexLock lock(mutex_);
    if (--active_ == 0) idle_.notify_all();
  }
  // Lets nobody begin any more, and waits for those who have begun.
  void close() {
    const MutexLock lock(mutex_);
    is_over_ = true;
    while (active_ > 0) idle_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  Condition idle_;
  int active_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool is_over_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

void ReadThreads::run(int threads, const std::function<void()>& work) {
  if (threads <= 1) return work();
  const auto turn = std::make_shared<Turn>();
  ThreadPool& all = pool();
  for (int i = 1; i < threads; ++i) {
    all.submit([turn, &work] {
      if (!turn->begin()) return;
      work();
      turn->end();
    });
  }
  work();
  turn->close();
}

Result<void> read_ranges(OpenFiles& files, ReadThreads& threads,
                          std::span<SampleRead> reads) {
  std::ranges::sort(reads, {}, [](const SampleRead& read) {
    return std::pair(read.from.file, read.from.begin);
  });
  const std::vector<Run> runs = runs_of(reads);
  std::atomic<size_t> next = 0;
  Mutex mutex;
  std::optional<Error> failed;  // the first
  const auto work = [&] {
    Reader reader(files);
    for (size_t i = next++; i < runs.size(); i = next++) {
      const auto read = reader.read(runs[i]);
      if (read.ok()) continue;
      next = runs.size();
      const MutexLock lock(mutex);
      if (!failed) failed = read.error();
    }
  };
  // A thread for a few reads costs more than it saves.
  constexpr size_t kLeastReads = 4;
  const size_t useful = runs.size() / kLeastReads;
  threads.run(static_cast<int>(std::min<size_t>(useful, static_cast<size_t>(threads.count()))),
              work);
  if (failed) return *failed;
  return {};
}

}  // namespace holdfast

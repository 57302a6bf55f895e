#include "holdfast/dataset/read_ranges.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

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
  Result<void> read_run(const Source& source, Run run);

  OpenFiles& files_;
  size_t file_ = 0;
  std::shared_ptr<const Source> source_{};
  Bytes memory_{};  // for runs with gaps; it only grows
};

Result<void> Reader::read_run(const Source& source, Run run) {
  if (run.size() == 1) return source.read(run[0].from.begin, run[0].into);
  const int64_t begin = run.front().from.begin;
  int64_t end = begin;
  for (const SampleRead& one : run) end = std::max(end, one.from.end);
  const auto size = static_cast<size_t>(end - begin);
  if (memory_.size() < size) memory_.resize(size);
  HOLDFAST_TRY(source.read(begin, ByteSpan(memory_).first(size)));
  for (const SampleRead& one : run) {
    if (one.into.empty()) continue;
    std::memcpy(one.into.data(), memory_.data() + (one.from.begin - begin), one.into.size());
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

// Threads that take part in one call of read_ranges().
class ReadThreads::Turn {
 public:
  // Both must outlive it.
  Turn(ReadThreads& threads, const std::function<void()>& work)
      : threads_(threads), work_(work) {}
  // Lets nobody begin any more, and waits for those who have begun.
  ~Turn() {
    const MutexLock lock(shared_->mutex);
    shared_->is_over = true;
    while (shared_->active > 0) shared_->idle.wait(shared_->mutex);
  }

  // Has so many other threads in all call work().
  void call(size_t threads) {
    for (; called_ < threads; ++called_) {
      threads_.pool().submit([shared = shared_, &work = work_] {
        if (!shared->begin()) return;
        work();
        shared->end();
      });
    }
  }

 private:
  // A thread that wakes up late looks only at this.
  struct Shared {
    bool begin() {
      const MutexLock lock(mutex);
      if (!is_over) ++active;
      return !is_over;
    }
    void end() {
      const MutexLock lock(mutex);
      if (--active == 0) idle.notify_all();
    }

    Mutex mutex{};
    Condition idle{};
    int active HOLDFAST_GUARDED_BY(mutex) = 0;
    bool is_over HOLDFAST_GUARDED_BY(mutex) = false;
  };

  ReadThreads& threads_;
  const std::function<void()>& work_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  size_t called_ = 0;
};

Result<void> read_ranges(OpenFiles& files, ReadThreads& threads,
                         std::span<SampleRead> reads) {
  std::ranges::sort(reads, {}, [](const SampleRead& read) {
    return std::pair(read.from.file, read.from.begin);
  });
  const std::vector<Run> runs = runs_of(reads);
  std::atomic<size_t> next = 0;
  Mutex mutex;
  std::optional<Error> failed;  // the first
  // Calls `after` with the time that each read took.
  const auto read_all = [&](const auto& after) {
    Reader reader(files);
    for (size_t i = next++; i < runs.size(); i = next++) {
      const Instant begin = files.env().now();
      const auto read = reader.read(runs[i]);
      after(files.env().now() - begin);
      if (read.ok()) continue;
      next = runs.size();
      const MutexLock lock(mutex);
      if (!failed) failed = read.error();
    }
  };
  {
    // A thread for a few reads costs more than it saves. What is in the page cache is read
    // at once, so that more threads than cores only cost time.
    constexpr size_t kLeastReads = 4;
    constexpr Duration kFromCache = std::chrono::microseconds(50);
    const size_t most = std::min(runs.size() / kLeastReads, threads.count());
    const std::function<void()> work = [&] { read_all([](Duration) {}); };
    ReadThreads::Turn turn(threads, work);
    turn.call(std::min<size_t>(most, std::thread::hardware_concurrency()) - (most > 0));
    read_all([&](Duration took) {
      if (took > kFromCache && most > 0) turn.call(most - 1);
    });
  }
  if (failed) return *failed;
  return {};
}

}  // namespace holdfast

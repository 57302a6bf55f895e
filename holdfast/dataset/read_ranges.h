// Reads many small ranges of many files, with several threads.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <span>

#include "holdfast/base/mutex.h"
#include "holdfast/base/thread_pool.h"
#include "holdfast/dataset/corpus.h"

namespace holdfast {

// Files that are opened when they are first read. Not more than a fixed number stays
// open: a corpus may have more files than a process may open. Safe from several threads.
class OpenFiles {
 public:
  // Both lists must outlive it. The indexes may be filled later, before the first call.
  OpenFiles(Env& env, const std::vector<Path>& paths, const std::vector<FileIndex>& indexes)
      : env_(env), paths_(paths), indexes_(indexes) {}

  // Fails with kCorrupt if the file has another size than when it was indexed.
  Result<std::shared_ptr<const Source>> file(size_t number);
  Env& env() const { return env_; }

 private:
  static constexpr size_t kMostOpen = 256;

  Env& env_;
  const std::vector<Path>& paths_;
  const std::vector<FileIndex>& indexes_;
  Mutex mutex_;
  // A reader keeps a file while another thread closes it here.
  std::map<size_t, std::shared_ptr<const Source>> open_ HOLDFAST_GUARDED_BY(mutex_);
};

// Threads that read. They start with the first call, and again in a process that was
// forked, which has none of them.
class ReadThreads {
 public:
  explicit ReadThreads(int threads) : count_(threads) {}
  ~ReadThreads();

  // How many read at a time, with the one that calls.
  size_t count() const { return static_cast<size_t>(count_); }

  class Turn;

 private:
  ThreadPool& pool();

  const int count_;
  Mutex mutex_;
  int process_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<ThreadPool> pool_ HOLDFAST_GUARDED_BY(mutex_);
};

// Reads with this thread, and with others if there is enough to read. Changes the order of
// the reads.
Result<void> read_ranges(OpenFiles& files, ReadThreads& threads,
                         std::span<SampleRead> reads);

}  // namespace holdfast

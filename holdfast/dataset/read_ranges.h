// Reads many small ranges of many files, with several threads.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/base/thread_pool.h"
#include "holdfast/dataset/corpus.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// Files are opened when they are first read. Not more than a fixed number stays open: a
// corpus may have more files than a process may open. Threads start with the first call that
// has work for them, and again in a process that was forked, which has none of them.
//
// Safe from several threads.
class RangeReader {
 public:
  // Env and lists must outlive it. The indexes may be filled later, before the first call.
  // `threads` is how many read at a time, with the one that calls.
  RangeReader(Env& env, const std::vector<Path>& paths, const std::vector<FileIndex>& indexes,
              int threads)
      : env_(env), paths_(paths), indexes_(indexes), count_(threads) {}
  ~RangeReader();

  // Fills the memory of all reads, and changes their order. Ranges that lie near each other
  // are one read. Fails with kCorrupt if a file is not as it was when it was indexed: it is
  // looked at after it was read.
  Result<void> read(std::span<SampleRead> reads);
  // The file, open to read. Fails with kCorrupt if it is not as it was when it was indexed.
  Result<std::shared_ptr<const FileSource>> file(size_t number);
  // Fails with kCorrupt if the file has been changed. It was opened by file().
  Result<void> check_unchanged(size_t number, const FileSource& source) const;

 private:
  class Job;
  static constexpr size_t kMostOpen = 256;

  ThreadPool& pool();
  // How many threads to call for so many reads, besides the one that calls.
  size_t others_for(size_t reads) const;

  Env& env_;
  const std::vector<Path>& paths_;
  const std::vector<FileIndex>& indexes_;
  const int count_;
  // True until a call has found that the system has the bytes in memory.
  std::atomic<bool> waits_for_disk_ = true;
  Mutex mutex_;
  // A reader keeps a file while another thread closes it here.
  std::map<size_t, std::shared_ptr<const FileSource>> open_ HOLDFAST_GUARDED_BY(mutex_);
  int process_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<ThreadPool> pool_ HOLDFAST_GUARDED_BY(mutex_);  // last: it uses the others
};

}  // namespace holdfast

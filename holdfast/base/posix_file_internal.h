// The file of the POSIX Env. Internal to base.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "holdfast/base/file.h"
#include "holdfast/base/thread_pool.h"

namespace holdfast {

// The threads that run submitted transfers, started when first asked for.
class IoThreads {
 public:
  explicit IoThreads(ThreadPoolOptions options) : options_(options) {}
  ThreadPool& pool();

 private:
  const ThreadPoolOptions options_;
  Mutex mutex_;
  std::unique_ptr<ThreadPool> pool_ HOLDFAST_GUARDED_BY(mutex_);
};

class PosixFile : public File {
 public:
  // Fails with the errors of Env::open. `threads` must outlive the file.
  static Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options,
                                            IoThreads& threads);
  ~PosixFile() override;

  Ticket submit_read(int64_t offset, ByteSpan into) override;
  Ticket submit_write(int64_t offset, ByteView bytes) override;
  Result<size_t> wait(Ticket ticket) override;

  Result<int64_t> size() override;
  Result<void> allocate(int64_t size) override;
  Result<void> truncate(int64_t size) override;
  Result<void> sync() override;
  Result<void> sync_data() override;

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override;
  Result<size_t> write_some(int64_t offset, ByteView bytes) override;
  Result<size_t> append_some(ByteView bytes) override;
  Result<void> close_handle() override;
  Result<void> drain() override;

 private:
  PosixFile(Path path, OpenOptions options, int descriptor, IoThreads& threads)
      : File(std::move(path), options), descriptor_(descriptor), threads_(threads) {}

  Ticket start(Transfer transfer);
  Result<void> check_kind() const;
  Result<void> make_direct() const;
  Error failure(std::string_view what) const;
  Error transfer_failure(std::string_view what) const;

  int descriptor_;  // -1 once closed
  IoThreads& threads_;

  Mutex mutex_;
  Condition finished_;
  uint64_t last_id_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // Of every ticket not yet waited for; empty while it runs.
  std::map<uint64_t, std::optional<Result<size_t>>> tickets_
      HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast

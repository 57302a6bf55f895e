// The file of the POSIX Env. Internal to env.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/base/thread_pool.h"
#include "holdfast/env/file.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/env/uring_internal.h"

namespace holdfast {

// Runs submitted transfers: creates rings, and owns the threads.
class PosixIo {
 public:
  explicit PosixIo(PosixOptions options) : options_(options) {}
  virtual ~PosixIo() = default;

  // A new ring for one file; null if the threads must run its transfers.
  virtual std::unique_ptr<Uring> make_ring() const;
  // The threads. They are started by the first call.
  ThreadPool& pool();

 private:
  const PosixOptions options_;
  Mutex mutex_;
  std::unique_ptr<ThreadPool> pool_ HOLDFAST_GUARDED_BY(mutex_);
};

// The time as an Env has it.
WallTime wall_time(const timespec& time);

class PosixFile : public File {
 public:
  // Fails with the errors of Env::open. `io` must outlive the file.
  static Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options,
                                            PosixIo& io);
  // The same as Env::create_unnamed and Env::name_file.
  static Result<std::unique_ptr<File>> create_unnamed(const Path& folder, PosixIo& io);
  Result<void> set_name(const Path& to) const;
  ~PosixFile() override;

  Ticket submit_read(int64_t offset, ByteSpan into) override;
  Ticket submit_write(int64_t offset, ByteView bytes) override;

  Result<int64_t> size() override;
  Result<WallTime> modified() override;
  int descriptor() const override { return descriptor_; }
  Result<void> allocate(int64_t size) override;
  Result<void> truncate(int64_t size) override;
  Result<void> sync() override;
  Result<void> sync_data() override;
  Result<bool> try_lock(LockKind kind) override;

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override;
  Result<size_t> write_some(int64_t offset, ByteView bytes) override;
  Result<size_t> append_some(ByteView bytes) override;
  Result<void> close_handle() override;

 private:
  // A part of a submitted transfer that is in the ring.
  struct Piece {
    UringPiece what;
    uint64_t id = 0;
  };

  PosixFile(Path path, OpenOptions options, int descriptor, PosixIo& io)
      : File(std::move(path), options), descriptor_(descriptor), io_(io) {}

  // posix_submit.cpp
  Uring* ring();
  Ticket start_in_ring(Uring& ring, UringPiece whole);
  Ticket start_in_pool(Transfer transfer);
  Result<size_t> finish_all(Uring& ring, const std::vector<Piece>& pieces);
  Result<size_t> finish(Uring& ring, const Piece& piece);
  Result<size_t> go_on(const UringPiece& piece, size_t done);

  std::string in_proc() const;
  Result<void> check_kind() const;
  Result<void> make_direct() const;
  Error failure(std::string_view what) const;
  Error transfer_failure(int number, std::string_view what) const;

  int descriptor_;  // -1 once closed
  bool locked_ = false;
  PosixIo& io_;

  Mutex mutex_;
  bool ring_asked_for_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Uring> ring_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast

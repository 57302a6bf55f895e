// The two ways to write an object: in one piece, and in parts that overlap.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/base/thread_pool.h"
#include "holdfast/remote/s3_client_internal.h"

namespace holdfast {

// Gathers the bytes and puts them at the end.
class SingleUpload : public Upload {
 public:
  SingleUpload(S3Client& client, std::string key, int64_t size)
      : client_(client), key_(std::move(key)), want_(size) {}

  Result<void> append(ByteView bytes) override;
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  Result<void> finish() override;
  Result<void> abort() override;

 private:
  S3Client& client_;
  const std::string key_;
  const int64_t want_;
  Bytes bytes_;
};

// Sends each part when it is full, on the threads of `pool`.
class MultipartUpload : public Upload {
 public:
  static Result<std::unique_ptr<Upload>> begin(S3Client& client, ThreadPool& pool,
                                               const std::string& key, int64_t size);
  ~MultipartUpload() override;

  Result<void> append(ByteView bytes) override;
  int64_t size() const override { return taken_; }
  Result<void> finish() override;
  Result<void> abort() override;

 private:
  MultipartUpload(S3Client& client, ThreadPool& pool, PendingUpload upload,
                  int64_t size);

  Result<void> begin_part();
  void send_part();
  void run_part(size_t number, const Bytes& part);
  Result<std::string> put_part(size_t number, const Bytes& part);
  void wait_for_parts();
  Result<void> failure();
  void fail(Error error);
  Result<void> complete();

  S3Client& client_;
  ThreadPool& pool_;
  const PendingUpload upload_;
  const int64_t want_;
  const int64_t part_bytes_;
  int64_t taken_ = 0;
  Bytes part_;  // the one that is being filled; it counts as in flight
  size_t parts_ = 0;
  bool over_ = false;               // finished or aborted
  std::atomic<bool> stop_ = false;  // parts on their way need not succeed any more

  Mutex mutex_;
  Condition part_done_;
  int in_flight_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  Result<void> failure_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> etags_ HOLDFAST_GUARDED_BY(mutex_);
};

// The size by HEAD.
Result<int64_t> object_size(S3Client& client, const std::string& key);

// Removes an upload that was begun; nothing there is success.
Result<void> abort_multipart(S3Client& client, const PendingUpload& upload,
                             int attempts);

}  // namespace holdfast

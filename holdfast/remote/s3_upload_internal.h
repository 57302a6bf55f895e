// The two ways to upload an object: by a single put, and in parts of which several are
// sent at the same time.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/base/thread_pool.h"
#include "holdfast/remote/s3_client_internal.h"

namespace holdfast {

// Collects the bytes in memory and sends them in finish().
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

// Sends each part when it is full, on the threads of `pool`. The client and the pool
// must outlive the upload.
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
  Bytes part_;  // the part that is being filled; in_flight_ counts it
  size_t parts_ = 0;
  bool over_ = false;               // the upload is finished or aborted
  std::atomic<bool> stop_ = false;  // parts that are being sent are not tried again

  Mutex mutex_;
  Condition part_done_;
  int in_flight_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  Result<void> failure_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> etags_ HOLDFAST_GUARDED_BY(mutex_);
};

// The size of an object, by a HEAD request.
Result<int64_t> object_size(S3Client& client, const std::string& key);

// Aborts an upload and removes its parts at the server. Succeeds if there is no such
// upload.
Result<void> abort_multipart(S3Client& client, const PendingUpload& upload,
                             int attempts);

}  // namespace holdfast

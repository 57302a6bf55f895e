// Sends signed requests to one bucket, and repeats each until it succeeds or its
// attempts are used up. Safe from several threads.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "holdfast/env/env.h"
#include "holdfast/remote/s3_endpoint_internal.h"
#include "holdfast/remote/s3_http_internal.h"

namespace holdfast {

struct S3Request {
  std::string method{};
  std::string key{};  // empty for the bucket itself
  QueryParameters query{};
  ByteView body{};
  // The most bytes that the answer may have. 8 MiB are enough for a page of a listing
  // with 1000 long keys.
  int64_t limit = int64_t{8} << 20;
  // If `into` is not empty, the request reads a range of an object of `total` bytes
  // into it. If the connection breaks, the next attempt asks only for the bytes still
  // missing.
  ByteSpan into{};
  int64_t offset = 0;
  int64_t total = 0;
  // True if an answer with status 200 may carry an error in its body: for some requests
  // the server begins to answer before it knows the outcome.
  bool error_in_body = false;
  int attempts = 0;                         // 0: as many as the options say
  const std::atomic<bool>* stop = nullptr;  // while true, no further attempt is made
};

class S3Client {
 public:
  S3Client(Env& env, S3Options options, S3Endpoint endpoint);

  const S3Options& options() const { return options_; }
  // "s3://bucket"
  const std::string& name() const { return name_; }
  // "s3://bucket/key"
  std::string where(const std::string& key) const;

  // Returns an answer with status 2xx. Any other outcome is an error (object_store.h).
  Result<HttpAnswer> send(S3Request request);

 private:
  Result<HttpAnswer> send_once(const S3Request& request);
  Result<void> check_range(const S3Request& request, const HttpAnswer& answer) const;
  Duration pause_after(int attempt);

  Env& env_;
  const S3Options options_;
  const S3Endpoint endpoint_;
  const std::string name_;
  Http http_;
};

// The error for an answer whose status is not 2xx. `bucket` and `where` are for
// messages.
struct S3Failure {
  Error error;
  bool may_pass = false;  // true if another attempt may succeed
};
S3Failure failure_of(const HttpAnswer& answer, const std::string& bucket,
                     const std::string& where);

}  // namespace holdfast

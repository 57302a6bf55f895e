// Signed requests to one bucket, made again until they succeed or the attempts are used
// up. Safe from several threads.
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
  int64_t limit = int64_t{8} << 20;  // bytes of the answer: a page of 1000 long keys
  // A range of an object of `total` bytes, to fill `into`. What came before a
  // connection broke is kept.
  ByteSpan into{};
  int64_t offset = 0;
  int64_t total = 0;
  // An answer of 200 may still be an error: it was begun before the outcome was known.
  bool error_in_body = false;
  int attempts = 0;                         // 0: as the options say
  const std::atomic<bool>* stop = nullptr;  // set: no further attempt
};

class S3Client {
 public:
  S3Client(Env& env, S3Options options, S3Endpoint endpoint);

  const S3Options& options() const { return options_; }
  // "s3://bucket"
  const std::string& name() const { return name_; }
  // "s3://bucket/key"
  std::string where(const std::string& key) const;

  // An answer with 2xx; everything else is an error (object_store.h).
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

// What an answer other than 2xx means. `bucket` and `where` are for messages.
struct S3Failure {
  Error error;
  bool may_pass = false;  // worth another attempt
};
S3Failure failure_of(const HttpAnswer& answer, const std::string& bucket,
                     const std::string& where);

}  // namespace holdfast

// Sends one HTTP request through libcurl, bounded in time and memory. Does not repeat a
// request that failed: S3Client does.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/mutex.h"
#include "holdfast/remote/s3_store.h"

namespace holdfast {

struct HttpRequest {
  std::string method;  // GET, HEAD, PUT, POST or DELETE
  std::string url;
  std::map<std::string, std::string> headers;
  ByteView body{};    // for PUT and POST
  ByteSpan into{};    // if not empty, the body of a 2xx answer is put here
  int64_t limit = 0;  // the most bytes of a 2xx body that is not put into `into`
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // by lower-case name
  std::string body;
  size_t received = 0;  // how many bytes were put into `into`
  // Why the transfer broke, if it did. The other fields then have what came before.
  // After kUnavailable and kTimeout another attempt may succeed; after kInvalid (the
  // answer is too long, the certificate is not trusted) it cannot.
  std::optional<Error> broken;
};

// Safe from several threads. Keeps connections open between requests. A process that was
// forked makes connections of its own.
class Http {
 public:
  explicit Http(const S3Options& options);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  HttpAnswer send(const HttpRequest& request, const std::string& where);

 private:
  class Handle;
  std::unique_ptr<Handle> take_handle();
  void give_back(std::unique_ptr<Handle> handle);

  const S3Options options_;
  Mutex mutex_;
  int process_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // whose connections these are
  std::vector<std::unique_ptr<Handle>> idle_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast

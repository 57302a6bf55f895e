// One HTTP request over libcurl, bounded in time and memory. No retries here.
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
  ByteView body{};    // of PUT and POST
  ByteSpan into{};    // takes the body of a 2xx answer, unless it is empty
  int64_t limit = 0;  // bytes of a body that is not for `into`
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names; of the last answer
  std::string body;
  size_t received = 0;  // bytes in `into`
  // What broke the transfer; the rest is then what came before. kUnavailable and
  // kTimeout may pass; kInvalid (too long, an untrusted certificate) does not.
  std::optional<Error> broken;
};

// Safe from several threads; keeps connections open between requests.
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
  std::vector<std::unique_ptr<Handle>> idle_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast

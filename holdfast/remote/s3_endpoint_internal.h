// The address of a bucket: the host, and the paths and URLs of its objects.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/remote/s3_store.h"

namespace holdfast {

// Amazon accepts at most this many parts for one object.
inline constexpr int64_t kMaxParts = 10'000;

// Encodes text for a URL: every byte except letters, digits and "-_.~" becomes %XX.
// With `keep_slash`, "/" stays as it is.
std::string uri_encode(std::string_view text, bool keep_slash);

struct S3Endpoint {
  bool tls = true;
  std::string host;    // the value of the Host header
  std::string folder;  // "/bucket" in path style, else empty

  std::string path_of(const std::string& key) const;
  std::string url_of(const std::string& path, const std::string& query) const;
};

// Both fail with kInvalid, and name the option, if an option has an impossible value.
Result<S3Endpoint> resolve_endpoint(const S3Options& options);
Result<void> check_options(const S3Options& options);

}  // namespace holdfast

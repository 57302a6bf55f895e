// Where the requests of a bucket go.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/remote/s3_store.h"

namespace holdfast {

// Amazon takes an object in at most so many parts.
inline constexpr int64_t kMaxParts = 10'000;

// Text as a URL has it: every byte but letters, digits and "-_.~" becomes %XX; "/" does,
// too, unless it is kept.
std::string uri_encode(std::string_view text, bool keep_slash);

struct S3Endpoint {
  bool tls = true;
  std::string host;    // as the Host header has it
  std::string folder;  // "/bucket" in path style, else empty

  std::string path_of(const std::string& key) const;
  std::string url_of(const std::string& path, const std::string& query) const;
};

// kInvalid, naming the option, for options that cannot be.
Result<S3Endpoint> resolve_endpoint(const S3Options& options);
Result<void> check_options(const S3Options& options);

}  // namespace holdfast

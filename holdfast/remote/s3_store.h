// S3-compatible object stores, over libcurl.
//
// Requests carry AWS Signature Version 4. Over a plain endpoint (http://) all bodies
// are signed, so that nobody can change them on the way. Over TLS, which protects them
// already, bodies above 64 KiB are not signed, because hashing uses one core for about
// each 200 MB/s.
//
// Every request has a time limit. It is repeated if the connection fails or the server
// answers 408, 429 or 5xx, after a pause that doubles each time and is partly random;
// when all attempts are used up, the last failure is returned. Redirects are not
// followed, because they would send the signature to another server. If the environment
// names a proxy, libcurl uses it.
//
// An object of up to one part is sent by a single put. A larger one is sent in parts of
// max(part_bytes, size / 10,000 rounded up) bytes, `parts_in_flight` of them at once.
// An open upload keeps at most `parts_in_flight` parts in memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "holdfast/base/variables.h"
#include "holdfast/env/env.h"
#include "holdfast/remote/object_store.h"
#include "holdfast/remote/sigv4.h"

namespace holdfast {

enum class S3Style {
  kAuto,         // kVirtualHost at Amazon (an empty endpoint), else kPath
  kPath,         // https://endpoint/bucket/key
  kVirtualHost,  // https://bucket.endpoint/key
};

struct S3Options {
  std::string bucket;
  std::string endpoint;  // "https://host[:port]"; empty: Amazon's in the region
  std::string region = "us-east-1";
  S3Style style = S3Style::kAuto;
  S3Credentials credentials;
  std::string ca_file;  // certificates to trust; empty: those of the system

  int64_t part_bytes = int64_t{8} << 20;
  int parts_in_flight = 4;

  int attempts = 6;  // how often a request is tried in all
  Duration first_pause = std::chrono::milliseconds(200);
  Duration longest_pause = std::chrono::seconds(20);
  Duration connect_timeout = std::chrono::seconds(10);
  // How long a transfer may go without a byte. Rounded up to whole seconds.
  Duration stall_timeout = std::chrono::seconds(60);
  Duration request_timeout = std::chrono::minutes(10);  // for one attempt
};

// "s3://bucket/some/prefix"; the prefix may be empty and has no slash at its end.
struct S3Url {
  std::string bucket;
  std::string prefix;
};
// Fails with kInvalid if the text is no such URL.
Result<S3Url> parse_s3_url(const std::string& url);

// Options for the bucket, from the same variables that other tools use:
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or
// AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_CA_BUNDLE.
S3Options s3_options_from(const Variables& variables, std::string bucket);

// Sends no request yet. Fails with kInvalid if an option has an impossible value, and
// with kUnsupported in a build without HOLDFAST_S3. Env must outlive the store.
Result<std::unique_ptr<ObjectStore>> open_s3(Env& env, const S3Options& options);

// The same with options from `variables`. Fails with kInvalid, and names the variable,
// if a key is not set.
Result<std::shared_ptr<ObjectStore>> open_s3_from(Env& env, const Variables& variables,
                                                  const std::string& bucket);

// The size of the parts in which `size` bytes are uploaded: max(least, size / 10,000
// rounded up), because a server accepts at most 10,000 parts.
int64_t s3_part_bytes(int64_t size, int64_t least);

}  // namespace holdfast

// S3-compatible object stores, over libcurl.
//
// Requests carry AWS Signature Version 4. A plain endpoint (http://) gets signed
// payloads, so that nobody can change them on the way; over TLS, which keeps them whole
// already, bodies above 64 KiB go unsigned: hashing costs a core for each 200 MB/s or so.
//
// Every request is bounded in time and made again, after a pause that doubles and is
// partly random, when the connection fails or the server answers 429 or 5xx; then the
// last failure is returned. Redirects are not followed: they would carry the signature
// elsewhere. A proxy is used where the environment names one, as libcurl does.
//
// Objects up to one part are sent by a single put. Larger ones go in parts of
// max(part_bytes, size / 10,000 rounded up), `parts_in_flight` of them at once. An open
// upload holds at most parts_in_flight parts in memory.
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
  std::string endpoint;  // "https://host[:port]"; empty: Amazon's of the region
  std::string region = "us-east-1";
  S3Style style = S3Style::kAuto;
  S3Credentials credentials;
  std::string ca_file;  // certificates to trust instead of the system's; else empty

  int64_t part_bytes = int64_t{8} << 20;
  int parts_in_flight = 4;

  int attempts = 6;  // of a request, the first included
  Duration first_pause = std::chrono::milliseconds(200);
  Duration longest_pause = std::chrono::seconds(20);
  Duration connect_timeout = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(60);    // without a byte; whole seconds
  Duration request_timeout = std::chrono::minutes(10);  // of one attempt
};

// "s3://bucket/some/prefix"; the prefix may be empty and has no slash at its end.
struct S3Url {
  std::string bucket;
  std::string prefix;
};
// kInvalid for anything else.
Result<S3Url> parse_s3_url(const std::string& url);

// Options for the bucket as other tools take them: AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION,
// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_CA_BUNDLE.
S3Options s3_options_from(const Variables& variables, std::string bucket);

// kInvalid for options that cannot be; kUnsupported in a build without libcurl
// (HOLDFAST_S3). Talks to nobody yet. Env must outlive the store.
Result<std::unique_ptr<ObjectStore>> open_s3(Env& env, const S3Options& options);

// The same with options from `variables`; kInvalid, naming the variable, without keys.
Result<std::shared_ptr<ObjectStore>> open_s3_from(Env& env, const Variables& variables,
                                                  const std::string& bucket);

// Of a multipart upload of `size` bytes: max(least, size / 10,000 rounded up).
int64_t s3_part_bytes(int64_t size, int64_t least);

}  // namespace holdfast

// AWS Signature Version 4 for the service "s3": makes the headers that prove who sent a
// request.
//
// This is our own code and not libcurl's; CONTRIBUTING.md says why. SHA-256 comes from
// OpenSSL, and functions fail only if OpenSSL provides none (s3_sha256_internal.h).
// Pure functions, safe from all threads.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"
#include "holdfast/env/env.h"

namespace holdfast {

// Sent instead of the body's digest when TLS already protects the body.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct S3Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // only for temporary credentials, else empty
};

using QueryParameters = std::vector<std::pair<std::string, std::string>>;

struct SigV4Request {
  std::string method;  // "GET"
  std::string host;    // the value of the Host header, without the default port
  std::string path;    // encoded, from the first "/"
  std::string query;   // made by canonical_query()
  std::map<std::string, std::string> headers{};  // more to sign, by lower-case name
  std::string payload;  // sha256_hex of the body, or kUnsignedPayload
};

// All headers to send: those of the request, host, x-amz-content-sha256, x-amz-date,
// x-amz-security-token if there is a session token, and authorization.
Result<std::map<std::string, std::string>> sign_v4(const SigV4Request& request,
                                                   const S3Credentials& credentials,
                                                   const std::string& region,
                                                   WallTime now);

// The query text, such as "a=1&b=": encoded and sorted. It is signed and must be sent
// in exactly this form.
std::string canonical_query(const QueryParameters& parameters);

// The SHA-256 digest as 64 hexadecimal digits.
Result<std::string> sha256_hex(ByteView bytes);

}  // namespace holdfast

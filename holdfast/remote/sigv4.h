// AWS Signature Version 4 for the service "s3": the headers that prove a request.
//
// Our own, not libcurl's: CONTRIBUTING.md says why. SHA-256 comes from OpenSSL, and so does
// the only failure (s3_sha256_internal.h). Pure functions, safe from all threads.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/clock.h"
#include "holdfast/base/result.h"

namespace holdfast {

// In place of the payload's digest where TLS already keeps it whole.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct S3Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // of temporary credentials; else empty
};

using QueryParameters = std::vector<std::pair<std::string, std::string>>;

struct SigV4Request {
  std::string method;  // "GET"
  std::string host;   // as the Host header has it, with the port unless it is the usual
  std::string path;   // encoded, from the first "/"
  std::string query;  // of canonical_query
  std::map<std::string, std::string> headers{};  // others to sign; lower-case names
  std::string payload;  // sha256_hex of the body, or kUnsignedPayload
};

// All headers to send: those of the request, host, x-amz-content-sha256, x-amz-date,
// x-amz-security-token where there is one, and authorization.
Result<std::map<std::string, std::string>> sign_v4(const SigV4Request& request,
                                                   const S3Credentials& credentials,
                                                   const std::string& region,
                                                   WallTime now);

// "a=1&b=": encoded and sorted, as it is signed and as it must be sent.
std::string canonical_query(const QueryParameters& parameters);

// 64 hexadecimal digits.
Result<std::string> sha256_hex(ByteView bytes);

}  // namespace holdfast

#include "holdfast/remote/sigv4.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "holdfast/remote/s3_endpoint_internal.h"
#include "holdfast/remote/s3_sha256_internal.h"

namespace holdfast {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

// "20130524T000000Z"
std::string compact_time(WallTime now) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const auto day = std::chrono::floor<std::chrono::days>(seconds);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(seconds - day);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count());
}

std::string joined_names(const std::map<std::string, std::string>& headers) {
  std::string names;
  for (const auto& [name, value] : headers) {
    if (!names.empty()) names += ';';
    names += name;
  }
  return names;
}

std::string canonical_request(const SigV4Request& request,
                              const std::map<std::string, std::string>& headers) {
  std::string text =
      fmt::format("{}\n{}\n{}\n", request.method, request.path, request.query);
  for (const auto& [name, value] : headers) text += fmt::format("{}:{}\n", name, value);
  return text + fmt::format("\n{}\n{}", joined_names(headers), request.payload);
}

Result<Sha256> signing_key(const std::string& secret, std::string_view date,
                           const std::string& region) {
  Sha256 key = HOLDFAST_TRY(hmac_sha256(bytes_of("AWS4" + secret), bytes_of(date)));
  for (const std::string_view part : {std::string_view(region), std::string_view("s3"),
                                      std::string_view("aws4_request")}) {
    key = HOLDFAST_TRY(hmac_sha256(key, bytes_of(part)));
  }
  return key;
}

}  // namespace

Result<std::map<std::string, std::string>> sign_v4(const SigV4Request& request,
                                                   const S3Credentials& credentials,
                                                   const std::string& region,
                                                   WallTime now) {
  const std::string time = compact_time(now);
  const std::string date = time.substr(0, 8);
  std::map<std::string, std::string> headers = request.headers;
  headers["host"] = request.host;
  headers["x-amz-content-sha256"] = request.payload;
  headers["x-amz-date"] = time;
  if (!credentials.session_token.empty()) {
    headers["x-amz-security-token"] = credentials.session_token;
  }
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", date, region);
  const std::string digest =
      HOLDFAST_TRY(sha256_hex(bytes_of(canonical_request(request, headers))));
  const std::string to_sign =
      fmt::format("{}\n{}\n{}\n{}", kAlgorithm, time, scope, digest);
  const Sha256 key = HOLDFAST_TRY(signing_key(credentials.secret_key, date, region));
  const Sha256 signature = HOLDFAST_TRY(hmac_sha256(key, bytes_of(to_sign)));
  headers["authorization"] = fmt::format(
      "{} Credential={}/{},SignedHeaders={},Signature={}", kAlgorithm,
      credentials.access_key, scope, joined_names(headers), to_hex(signature));
  return headers;
}

std::string canonical_query(const QueryParameters& parameters) {
  QueryParameters encoded;
  for (const auto& [name, value] : parameters) {
    encoded.emplace_back(uri_encode(name, false), uri_encode(value, false));
  }
  std::sort(encoded.begin(), encoded.end());
  std::string query;
  for (const auto& [name, value] : encoded) {
    query += fmt::format("{}{}={}", query.empty() ? "" : "&", name, value);
  }
  return query;
}

Result<std::string> sha256_hex(ByteView bytes) {
  return to_hex(HOLDFAST_TRY(sha256(bytes)));
}

}  // namespace holdfast

#include <fmt/format.h>

#include <algorithm>

#include "holdfast/remote/s3_client_internal.h"

namespace holdfast {
namespace {

// Over TLS, larger bodies are not hashed and signed (s3_store.h).
constexpr size_t kUnsignedAbove = size_t{64} << 10;

bool is_success(const S3Request& request, const HttpAnswer& answer) {
  if (answer.broken.has_value() || answer.status < 200 || answer.status >= 300) {
    return false;
  }
  return !request.error_in_body || answer.body.find("<Error>") == std::string::npos;
}

S3Failure failure_of_attempt(HttpAnswer answer, const std::string& bucket,
                             const std::string& where) {
  if (answer.broken.has_value()) {
    const bool may_pass = answer.broken->code() != ErrorCode::kInvalid;
    return {*answer.broken, may_pass};
  }
  if (answer.status == 200) answer.status = 500;  // the body of the answer is an error
  return failure_of(answer, bucket, where);
}

// The next attempt asks only for the bytes that have not arrived yet.
void skip_received(S3Request& request, size_t received) {
  request.into = request.into.subspan(received);
  request.offset += static_cast<int64_t>(received);
}

}  // namespace

S3Client::S3Client(Env& env, S3Options options, S3Endpoint endpoint)
    : env_(env),
      options_(std::move(options)),
      endpoint_(std::move(endpoint)),
      name_("s3://" + options_.bucket),
      http_(options_) {}

std::string S3Client::where(const std::string& key) const {
  return key.empty() ? name_ : name_ + "/" + key;
}

Result<HttpAnswer> S3Client::send_once(const S3Request& request) {
  SigV4Request to_sign{.method = request.method,
                       .host = endpoint_.host,
                       .path = endpoint_.path_of(request.key),
                       .query = canonical_query(request.query),
                       .payload = std::string(kUnsignedPayload)};
  if (!endpoint_.tls || request.body.size() <= kUnsignedAbove) {
    to_sign.payload = HOLDFAST_TRY(sha256_hex(request.body));
  }
  if (!request.into.empty()) {
    const int64_t last = request.offset + static_cast<int64_t>(request.into.size()) - 1;
    to_sign.headers["range"] = fmt::format("bytes={}-{}", request.offset, last);
  }
  std::map<std::string, std::string> headers = HOLDFAST_TRY(
      sign_v4(to_sign, options_.credentials, options_.region, env_.wall_now()));
  const HttpRequest http{.method = request.method,
                         .url = endpoint_.url_of(to_sign.path, to_sign.query),
                         .headers = std::move(headers),
                         .body = request.body,
                         .into = request.into,
                         .limit = request.limit};
  return http_.send(http, where(request.key));
}

// Checks that the answer is for the range that was asked for. The status does not say
// it, because some servers answer a range with 200; the header content-range does.
Result<void> S3Client::check_range(const S3Request& request,
                                   const HttpAnswer& answer) const {
  if (request.into.empty() || answer.status / 100 != 2) return {};
  const int64_t last = request.offset + static_cast<int64_t>(request.into.size()) - 1;
  const auto found = answer.headers.find("content-range");
  const std::string seen = found == answer.headers.end() ? "none" : found->second;
  const std::string range = fmt::format("bytes {}-{}/", request.offset, last);
  if (!seen.starts_with(range)) {
    return unsupported("{}: answer has range \"{}\"; expected \"{}{}\"",
                       where(request.key), seen.substr(0, 80), range, request.total);
  }
  if (seen.substr(range.size()) != std::to_string(request.total)) {
    return corrupt(
        "{}: answer has range \"{}\"; expected {} bytes in all, as when it was opened",
        where(request.key), seen.substr(0, 80), request.total);
  }
  return {};
}

// The pause doubles after each attempt. Half of it is random, so that ranks that failed
// at the same time do not try again at the same time.
Duration S3Client::pause_after(int attempt) {
  Duration pause = options_.first_pause;
  for (int i = 1; i < attempt && pause < options_.longest_pause; ++i) pause *= 2;
  const int64_t half = std::min(pause, options_.longest_pause).count() / 2;
  const auto extra = env_.random64() % (static_cast<uint64_t>(half) + 1);
  return Duration(half + static_cast<int64_t>(extra));
}

Result<HttpAnswer> S3Client::send(S3Request request) {
  const int attempts = request.attempts > 0 ? request.attempts : options_.attempts;
  for (int attempt = 1;; ++attempt) {
    HttpAnswer answer = HOLDFAST_TRY(send_once(request));
    HOLDFAST_TRY(check_range(request, answer));
    if (is_success(request, answer)) {
      if (answer.received == request.into.size()) return answer;
      answer.broken =
          unavailable("{}: answer has {} bytes; expected {}", where(request.key),
                      answer.received, request.into.size());
    }
    skip_received(request, answer.received);
    // The connection broke, but all bytes had arrived before.
    if (answer.received > 0 && request.into.empty()) return answer;
    const S3Failure failure =
        failure_of_attempt(std::move(answer), name_, where(request.key));
    const bool stopped = request.stop != nullptr && *request.stop;
    if (!failure.may_pass || stopped) return failure.error;
    if (attempt == attempts) {
      return failure.error.within(fmt::format("no success in {} attempts", attempts));
    }
    env_.sleep_for(pause_after(attempt));
  }
}

}  // namespace holdfast

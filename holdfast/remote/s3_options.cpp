// Options of S3 stores: checks them, reads them from the environment, and makes URLs.
#include <fmt/format.h>

#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/remote/s3_endpoint_internal.h"

namespace holdfast {
namespace {

constexpr const char* kAccessKey = "AWS_ACCESS_KEY_ID";
constexpr const char* kSecretKey = "AWS_SECRET_ACCESS_KEY";

bool is_word(std::string_view text, std::string_view others) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != others.npos;
  });
}

bool is_bucket(const std::string& name) {
  return name.size() >= 3 && name.size() <= 63 && is_word(name, ".-_") &&
         name.front() != '.' && name.find("..") == name.npos;
}

// True if the text can be put into a header unchanged.
bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c > ' ' && c < 0x7f; });
}

Result<void> check_credentials(const S3Options& options) {
  const S3Credentials& keys = options.credentials;
  if (keys.access_key.empty() || keys.secret_key.empty()) {
    return invalid("s3://{}: no {}; expected both keys of the account", options.bucket,
                   keys.access_key.empty() ? "access key" : "secret key");
  }
  if (!is_printable(keys.access_key) || !is_printable(keys.session_token)) {
    return invalid(
        "s3://{}: access key or session token with other characters; expected "
        "printable ASCII without spaces",
        options.bucket);
  }
  return {};
}

// Finds the host, the port and whether TLS is used in the endpoint's URL.
Result<S3Endpoint> parse_endpoint(const S3Options& options) {
  std::string_view rest = options.endpoint;
  S3Endpoint endpoint;
  if (rest.starts_with("http://")) {
    endpoint.tls = false;
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else {
    return invalid("s3://{}: endpoint \"{}\"; expected https://host[:port]",
                   options.bucket, options.endpoint);
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (!is_word(rest, ".-:[]")) {
    return invalid(
        "s3://{}: endpoint \"{}\"; expected only a host and a port after the //",
        options.bucket, options.endpoint);
  }
  // libcurl leaves the default port out of the Host header, so the host that is signed
  // must not have it either.
  const std::string_view usual = endpoint.tls ? ":443" : ":80";
  if (rest.ends_with(usual)) rest.remove_suffix(usual.size());
  endpoint.host = rest;
  return endpoint;
}

}  // namespace

std::string uri_encode(std::string_view text, bool keep_slash) {
  constexpr std::string_view kPlain = "-_.~";
  std::string encoded;
  for (const char c : text) {
    const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    const bool digit = c >= '0' && c <= '9';
    if (letter || digit || kPlain.find(c) != kPlain.npos || (keep_slash && c == '/')) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string S3Endpoint::path_of(const std::string& key) const {
  return folder + "/" + uri_encode(key, true);
}

std::string S3Endpoint::url_of(const std::string& path,
                               const std::string& query) const {
  return fmt::format("{}://{}{}{}{}", tls ? "https" : "http", host, path,
                     query.empty() ? "" : "?", query);
}

Result<S3Endpoint> resolve_endpoint(const S3Options& options) {
  S3Options known = options;
  const bool amazon = options.endpoint.empty();
  if (amazon)
    known.endpoint = fmt::format("https://s3.{}.amazonaws.com", options.region);
  if (options.style == S3Style::kAuto) {
    known.style = amazon ? S3Style::kVirtualHost : S3Style::kPath;
  }
  S3Endpoint endpoint = HOLDFAST_TRY(parse_endpoint(known));
  if (known.style == S3Style::kPath) {
    endpoint.folder = "/" + options.bucket;
  } else {
    endpoint.host = options.bucket + "." + endpoint.host;
  }
  return endpoint;
}

Result<void> check_options(const S3Options& options) {
  if (!is_bucket(options.bucket)) {
    return invalid(
        "bucket \"{}\"; expected 3 to 63 letters, digits, \"-\", \"_\" and \".\"",
        options.bucket);
  }
  if (!is_word(options.region, "-")) {
    return invalid("s3://{}: region \"{}\"; expected one such as us-east-1",
                   options.bucket, options.region);
  }
  HOLDFAST_TRY(check_credentials(options));
  if (options.part_bytes < 1 || options.parts_in_flight < 1 || options.attempts < 1) {
    return invalid(
        "s3://{}: part_bytes {}, parts_in_flight {}, attempts {}; expected > 0",
        options.bucket, options.part_bytes, options.parts_in_flight, options.attempts);
  }
  const Duration shortest = std::min(
      {options.connect_timeout, options.stall_timeout, options.request_timeout});
  if (shortest < std::chrono::milliseconds(1)) {
    return invalid("s3://{}: a timeout of {} ns; expected 1 ms or more", options.bucket,
                   shortest.count());
  }
  if (options.first_pause < Duration(0) || options.longest_pause < Duration(0)) {
    return invalid("s3://{}: a pause below 0; expected 0 or more", options.bucket);
  }
  return {};
}

Result<S3Url> parse_s3_url(const std::string& url) {
  constexpr std::string_view kScheme = "s3://";
  if (!url.starts_with(kScheme)) return invalid("{}: expected s3://bucket/prefix", url);
  const std::string rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  S3Url parsed{.bucket = rest.substr(0, slash), .prefix = ""};
  if (slash < rest.size()) parsed.prefix = rest.substr(slash + 1);
  if (parsed.prefix.ends_with('/')) parsed.prefix.pop_back();
  if (!is_bucket(parsed.bucket)) {
    return invalid(
        "{}: bucket \"{}\"; expected 3 to 63 letters, digits, \"-\", \"_\" and \".\"",
        url, parsed.bucket);
  }
  if (!parsed.prefix.empty()) HOLDFAST_TRY(check_object_key(url, parsed.prefix));
  return parsed;
}

S3Options s3_options_from(const Variables& variables, std::string bucket) {
  const auto first_of = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const std::optional<std::string> value = variables(name);
      if (value.has_value() && !value->empty()) return *value;
    }
    return std::string();
  };
  S3Options options;
  options.bucket = std::move(bucket);
  options.credentials = {.access_key = first_of({kAccessKey}),
                         .secret_key = first_of({kSecretKey}),
                         .session_token = first_of({"AWS_SESSION_TOKEN"})};
  options.endpoint = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  options.ca_file = first_of({"AWS_CA_BUNDLE"});
  const std::string region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (!region.empty()) options.region = region;
  return options;
}

Result<std::shared_ptr<ObjectStore>> open_s3_from(Env& env, const Variables& variables,
                                                  const std::string& bucket) {
  const S3Options options = s3_options_from(variables, bucket);
  auto store = open_s3(env, options);
  if (store.ok()) return std::shared_ptr<ObjectStore>(*std::move(store));
  const S3Credentials& keys = options.credentials;
  const bool both = !keys.access_key.empty() && !keys.secret_key.empty();
  const bool wrong = store.error().code() == ErrorCode::kInvalid;
  if (both || !wrong || !is_bucket(bucket)) return store.error();
  return invalid(
      "s3://{}: {} is not set; expected the keys of the account in {} and {}", bucket,
      keys.access_key.empty() ? kAccessKey : kSecretKey, kAccessKey, kSecretKey);
}

int64_t s3_part_bytes(int64_t size, int64_t least) {
  return std::max(least, divide_up(size, kMaxParts));
}

}  // namespace holdfast

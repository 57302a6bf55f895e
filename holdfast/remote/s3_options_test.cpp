#include <gtest/gtest.h>

#include <map>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/remote/s3_endpoint_internal.h"

namespace holdfast {
namespace {

S3Options good_options() {
  S3Options options;
  options.bucket = "runs";
  options.credentials = {
      .access_key = "key", .secret_key = "secret", .session_token = ""};
  return options;
}

std::string url_of(const S3Options& options) {
  const auto endpoint = resolve_endpoint(options);
  return endpoint.ok() ? endpoint->url_of(endpoint->path_of("a b"), "")
                       : endpoint.error().message();
}

TEST(S3OptionsTest, AmazonHasTheBucketInTheHostAndOthersInThePath) {
  S3Options options = good_options();
  options.region = "eu-west-1";
  EXPECT_EQ(url_of(options), "https://runs.s3.eu-west-1.amazonaws.com/a%20b");
  options.endpoint = "http://127.0.0.1:9000/";
  EXPECT_EQ(url_of(options), "http://127.0.0.1:9000/runs/a%20b");
  options.style = S3Style::kVirtualHost;
  EXPECT_EQ(url_of(options), "http://runs.127.0.0.1:9000/a%20b");
}

TEST(S3OptionsTest, EncodesEveryByteButTheUnreserved) {
  EXPECT_EQ(uri_encode("AZaz09-_.~", false), "AZaz09-_.~");
  EXPECT_EQ(uri_encode("a/b c", true), "a/b%20c");
  EXPECT_EQ(uri_encode("a/b", false), "a%2Fb");
  EXPECT_EQ(uri_encode("\xc3\xa9+%", true), "%C3%A9%2B%25");
}

TEST(S3OptionsTest, TheUsualPortIsNotPartOfTheHost) {
  S3Options options = good_options();
  options.endpoint = "https://store.example:443";
  EXPECT_EQ(url_of(options), "https://store.example/runs/a%20b");
}

TEST(S3OptionsTest, AnEndpointIsASchemeAHostAndAPort) {
  S3Options options = good_options();
  for (const char* endpoint :
       {"store.example", "ftp://store.example", "https://", "https://host/path",
        "https://user@host", "https://a b"}) {
    options.endpoint = endpoint;
    EXPECT_ERROR(resolve_endpoint(options), ErrorCode::kInvalid);
  }
}

TEST(S3OptionsTest, OptionsThatCannotBeAreNamed) {
  EXPECT_OK(check_options(good_options()));
  const auto message = [](void (*spoil)(S3Options&)) {
    S3Options options = good_options();
    spoil(options);
    return message_of(check_options(options));
  };
  EXPECT_EQ(
      message([](S3Options& o) { o.bucket = "../x"; }),
      "bucket \"../x\"; expected 3 to 63 letters, digits, \"-\", \"_\" and \".\"");
  EXPECT_EQ(message([](S3Options& o) { o.credentials.access_key = ""; }),
            "s3://runs: no access key; expected both keys of the account");
  EXPECT_EQ(message([](S3Options& o) { o.credentials.secret_key = ""; }),
            "s3://runs: no secret key; expected both keys of the account");
  EXPECT_NE(message([](S3Options& o) { o.credentials.session_token = "a\r\nb: c"; }),
            "");
  EXPECT_NE(message([](S3Options& o) { o.region = "a/b"; }), "");
  EXPECT_NE(message([](S3Options& o) { o.parts_in_flight = 0; }), "");
  EXPECT_NE(message([](S3Options& o) { o.part_bytes = 0; }), "");
  EXPECT_NE(message([](S3Options& o) { o.attempts = 0; }), "");
  EXPECT_NE(message([](S3Options& o) { o.stall_timeout = Duration(0); }), "");
  EXPECT_NE(message([](S3Options& o) { o.first_pause = Duration(-1); }), "");
}

TEST(S3OptionsTest, AnUrlIsABucketAndAPrefix) {
  const auto url = parse_s3_url("s3://runs/gpt/one/");
  ASSERT_OK(url);
  EXPECT_EQ(url->bucket, "runs");
  EXPECT_EQ(url->prefix, "gpt/one");
  EXPECT_EQ(parse_s3_url("s3://runs")->prefix, "");
  for (const char* bad : {"", "runs/gpt", "http://runs", "s3://", "s3://x/",
                          "s3://runs//a", "s3://runs/a/../b"}) {
    EXPECT_ERROR(parse_s3_url(bad), ErrorCode::kInvalid);
  }
}

TEST(S3OptionsTest, TheEnvironmentIsReadAsOtherToolsReadIt) {
  const std::map<std::string, std::string> values = {
      {"AWS_ACCESS_KEY_ID", "id"},        {"AWS_SECRET_ACCESS_KEY", "secret"},
      {"AWS_SESSION_TOKEN", "token"},     {"AWS_DEFAULT_REGION", "eu-west-1"},
      {"AWS_ENDPOINT_URL", "http://any"}, {"AWS_ENDPOINT_URL_S3", "http://s3"},
      {"AWS_CA_BUNDLE", "/ca.pem"}};
  const Variables variables =
      [&](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
  const S3Options options = s3_options_from(variables, "runs");
  EXPECT_EQ(options.bucket, "runs");
  EXPECT_EQ(options.credentials.access_key, "id");
  EXPECT_EQ(options.credentials.secret_key, "secret");
  EXPECT_EQ(options.credentials.session_token, "token");
  EXPECT_EQ(options.region, "eu-west-1");
  EXPECT_EQ(options.endpoint, "http://s3");
  EXPECT_EQ(options.ca_file, "/ca.pem");
  const auto none = [](const std::string&) { return std::optional<std::string>(); };
  EXPECT_EQ(s3_options_from(none, "runs").region, "us-east-1");
}

TEST(S3OptionsTest, NoUploadHasMoreThanTenThousandParts) {
  const int64_t mib = int64_t{1} << 20;
  EXPECT_EQ(s3_part_bytes(20 * mib, 8 * mib), 8 * mib);
  EXPECT_EQ(s3_part_bytes(80'000 * mib, 8 * mib), 8 * mib);
  EXPECT_EQ(s3_part_bytes(80'000 * mib + 1, 8 * mib), 8 * mib + 1);
}

#ifndef HOLDFAST_HAS_S3
TEST(S3OptionsTest, ABuildWithoutLibcurlNamesTheOption) {
  MemoryEnv env;
  const auto store = open_s3(env, good_options());
  EXPECT_ERROR(store, ErrorCode::kUnsupported);
  EXPECT_NE(message_of(store).find("HOLDFAST_S3"), std::string::npos);
}
#endif

}  // namespace
}  // namespace holdfast

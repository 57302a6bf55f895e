#include "holdfast/remote/sigv4.h"

#include <gtest/gtest.h>

#include "holdfast/remote/s3_sha256_internal.h"

namespace holdfast {
namespace {

constexpr WallTime kDay = std::chrono::sys_days{std::chrono::year(2013) / 5 / 24};

// The account of Amazon's published examples.
const S3Credentials kExample{.access_key = "AKIAIOSFODNN7EXAMPLE",
                             .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                             .session_token = ""};

std::string signature_of(SigV4Request request, S3Credentials credentials = kExample) {
  request.host = "examplebucket.s3.amazonaws.com";
  if (request.payload.empty()) request.payload = sha256_hex({});
  const auto headers = sign_v4(request, credentials, "us-east-1", kDay);
  const std::string& text = headers.at("authorization");
  return text.substr(text.find("Signature=") + 10);
}

TEST(Sha256Test, AgreesWithThePublishedVectors) {
  EXPECT_EQ(sha256_hex(bytes_of("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(bytes_of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      sha256_hex(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(bytes_of(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Where the length still fits into the last block, and where it needs one more.
TEST(Sha256Test, PadsRightAroundTheEndsOfBlocks) {
  const std::pair<size_t, const char*> cases[] = {
      {55, "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072"},
      {56, "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e"},
      {63, "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2"},
      {64, "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c"},
      {65, "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9"},
      {119, "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c"},
      {120, "13f05a0b594787f5ecd315edc96141bd3243203d1b7d4f0836f37308b276ba98"}};
  for (const auto& [count, want] : cases) {
    EXPECT_EQ(sha256_hex(bytes_of(std::string(count, 'x'))), want) << count;
  }
}

TEST(Sha256Test, HmacAgreesWithRfc4231) {
  EXPECT_EQ(
      to_hex(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string key(131, '\xaa');  // longer than a block
  EXPECT_EQ(to_hex(hmac_sha256(
                bytes_of(key),
                bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(SigV4Test, SignsAmazonsExamples) {
  EXPECT_EQ(signature_of({.method = "GET",
                          .host = "",
                          .path = "/test.txt",
                          .query = "",
                          .headers = {{"range", "bytes=0-9"}},
                          .payload = ""}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(signature_of({.method = "PUT",
                          .host = "",
                          .path = "/" + uri_encode("test$file.text", true),
                          .query = "",
                          .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                      {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                          .payload = sha256_hex(bytes_of("Welcome to Amazon S3."))}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(SigV4Test, SortsTheQueryAndGivesEveryParameterAnEqualsSign) {
  EXPECT_EQ(canonical_query({{"prefix", "J"}, {"max-keys", "2"}}),
            "max-keys=2&prefix=J");
  EXPECT_EQ(canonical_query({{"uploads", ""}}), "uploads=");
  EXPECT_EQ(canonical_query({{"k", "a b+c/d%"}}), "k=a%20b%2Bc%2Fd%25");
  EXPECT_EQ(
      signature_of({.method = "GET",
                    .host = "",
                    .path = "/",
                    .query = canonical_query({{"prefix", "J"}, {"max-keys", "2"}}),
                    .payload = ""}),
      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
  EXPECT_EQ(signature_of({.method = "GET",
                          .host = "",
                          .path = "/",
                          .query = canonical_query({{"lifecycle", ""}}),
                          .payload = ""}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(SigV4Test, ASessionTokenIsSentAndSigned) {
  S3Credentials credentials = kExample;
  credentials.session_token = "a/token==";
  const SigV4Request request{.method = "GET",
                             .host = "",
                             .path = "/",
                             .query = "max-keys=2&prefix=J",
                             .payload = sha256_hex({})};
  EXPECT_EQ(signature_of(request, credentials),
            "3e141a30ac6495b889b2f4418ec5f2c1627a769b3ec1f2864cc4c7d375b295f2");
  EXPECT_EQ(sign_v4(request, credentials, "us-east-1", kDay).at("x-amz-security-token"),
            "a/token==");
}

TEST(SigV4Test, AnUnsignedPayloadIsNamedAsOne) {
  EXPECT_EQ(signature_of({.method = "PUT",
                          .host = "",
                          .path = "/big",
                          .query = "",
                          .payload = std::string(kUnsignedPayload)}),
            "207794e69fa58eef22cc34f98e00a3a3b03bc89ad96f116cb9dec596aa604194");
}

TEST(SigV4Test, EncodesEveryByteButTheUnreserved) {
  EXPECT_EQ(uri_encode("AZaz09-_.~", false), "AZaz09-_.~");
  EXPECT_EQ(uri_encode("a/b c", true), "a/b%20c");
  EXPECT_EQ(uri_encode("a/b", false), "a%2Fb");
  EXPECT_EQ(uri_encode("\xc3\xa9+%", true), "%C3%A9%2B%25");
}

}  // namespace
}  // namespace holdfast

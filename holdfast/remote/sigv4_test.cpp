#include "holdfast/remote/sigv4.h"

#include <gtest/gtest.h>

#ifdef HOLDFAST_HAS_S3

#include <openssl/evp.h>

#include "holdfast/base/testing.h"
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
  if (request.payload.empty()) request.payload = *sha256_hex({});
  const auto headers = sign_v4(request, credentials, "us-east-1", kDay).value();
  const std::string& text = headers.at("authorization");
  return text.substr(text.find("Signature=") + 10);
}

TEST(Sha256Test, AgreesWithThePublishedVectors) {
  EXPECT_EQ(*sha256_hex(bytes_of("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(*sha256_hex(bytes_of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      *sha256_hex(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(*sha256_hex(bytes_of(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, HmacAgreesWithRfc4231) {
  EXPECT_EQ(
      to_hex(*hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string key(131, '\xaa');  // longer than a block
  EXPECT_EQ(to_hex(*hmac_sha256(
                bytes_of(key),
                bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// A machine may be set up so that programs get only certified algorithms, or none.
TEST(Sha256Test, AnOpenSslWithoutItIsAnErrorAndNoCrash) {
  ASSERT_EQ(EVP_set_default_properties(nullptr, "provider=nobody"), 1);
  EXPECT_ERROR(sha256(bytes_of("abc")), ErrorCode::kUnsupported);
  EXPECT_ERROR(hmac_sha256(bytes_of("key"), bytes_of("abc")), ErrorCode::kUnsupported);
  EXPECT_ERROR(sign_v4({}, kExample, "us-east-1", kDay), ErrorCode::kUnsupported);
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  EXPECT_OK(sha256(bytes_of("abc")));
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
                          .path = "/test%24file.text",
                          .query = "",
                          .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                      {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                          .payload = *sha256_hex(bytes_of("Welcome to Amazon S3."))}),
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
                             .payload = *sha256_hex({})};
  EXPECT_EQ(signature_of(request, credentials),
            "3e141a30ac6495b889b2f4418ec5f2c1627a769b3ec1f2864cc4c7d375b295f2");
  EXPECT_EQ(
      sign_v4(request, credentials, "us-east-1", kDay)->at("x-amz-security-token"),
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

}  // namespace
}  // namespace holdfast

#endif

// Against a server that misbehaves as it is told.
#include <gtest/gtest.h>

#ifdef HOLDFAST_HAS_S3

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/remote/s3_server_testing.h"

namespace holdfast {
namespace {

using Script = std::vector<std::string>;

std::string error_answer(const std::string& status, const std::string& code) {
  return ScriptedServer::answer(status, "<Error><Code>" + code + "</Code></Error>");
}

const std::string kOk = ScriptedServer::answer("200 OK", "");

class S3FailureTest : public testing::Test {
 protected:
  std::unique_ptr<ObjectStore> serve(Script script, int attempts = 3) {
    server = std::make_unique<ScriptedServer>(std::move(script));
    options = options_for(server->endpoint());
    options.attempts = attempts;
    options.first_pause = std::chrono::seconds(100);
    options.longest_pause = std::chrono::seconds(300);
    options.part_bytes = 1000;
    options.parts_in_flight = 1;
    return open();
  }
  std::unique_ptr<ObjectStore> open() { return open_s3(env, options).value(); }
  size_t asked() const { return server->requests().size(); }
  std::string request(size_t i) const { return server->requests().at(i); }
  // The outcome of one put to a server that sends this answer.
  Result<void> put_with(const std::string& answer) {
    return serve({answer})->put("key", bytes_of("x"));
  }

  MemoryEnv env;  // its clock moves only by the pauses
  std::unique_ptr<ScriptedServer> server;
  S3Options options;
};

TEST_F(S3FailureTest, APassing503IsTriedAgainAfterPausesThatDouble) {
  const auto store = serve({error_answer("503 Slow Down", "SlowDown"),
                            error_answer("503 Slow Down", "SlowDown"), kOk});
  const Instant before = env.now();
  EXPECT_OK(store->put("key", bytes_of("value")));
  EXPECT_EQ(asked(), 3U);
  EXPECT_TRUE(request(2).ends_with("\r\n\r\nvalue"));
  // Half of each pause is random: 50 to 100 s, then 100 to 200 s.
  EXPECT_GE(env.now() - before, std::chrono::seconds(150));
  EXPECT_LE(env.now() - before, std::chrono::seconds(300));
}

TEST_F(S3FailureTest, AttemptsAndPausesAreBounded) {
  const auto store = serve({error_answer("500 Oh", "InternalError")}, 6);
  const Instant before = env.now();
  const auto outcome = store->put("key", {});
  EXPECT_ERROR(outcome, ErrorCode::kUnavailable);
  EXPECT_EQ(message_of(outcome),
            "no success in 6 attempts: s3://bucket/key: the server cannot answer now "
            "(InternalError)");
  EXPECT_EQ(asked(), 6U);
  EXPECT_LE(env.now() - before, std::chrono::seconds(100 + 200 + 300 + 300 + 300));
}

TEST_F(S3FailureTest, EveryRefusalHasItsCode) {
  const std::pair<std::string, ErrorCode> cases[] = {
      {error_answer("400 Bad", "InvalidArgument"), ErrorCode::kInvalid},
      {error_answer("401 No", "AccessDenied"), ErrorCode::kInvalid},
      {error_answer("403 No", "AccessDenied"), ErrorCode::kInvalid},
      {error_answer("404 No", "NoSuchKey"), ErrorCode::kNotFound},
      {error_answer("405 No", "MethodNotAllowed"), ErrorCode::kUnsupported},
      {error_answer("409 No", "OperationAborted"), ErrorCode::kConflict},
      {error_answer("501 No", "NotImplemented"), ErrorCode::kUnsupported},
      {error_answer("507 Full", "XMinioStorageFull"), ErrorCode::kNoSpace},
      {error_answer("403 Full", "QuotaExceeded"), ErrorCode::kNoSpace},
      {ScriptedServer::answer("302 Go", "", "Location: http://127.0.0.1:1/\r\n"),
       ErrorCode::kInvalid}};
  for (const auto& [answer, code] : cases) {
    EXPECT_ERROR(put_with(answer), code);
    EXPECT_EQ(asked(), 1U) << answer;
  }
}

TEST_F(S3FailureTest, DeniedAccessSaysWhatToCheck) {
  EXPECT_EQ(message_of(put_with(error_answer("403 No", "RequestTimeTooSkewed"))),
            "s3://bucket: access denied (RequestTimeTooSkewed); check this machine's "
            "clock");
  EXPECT_EQ(message_of(put_with(ScriptedServer::answer("403 No", "<html>"))),
            "s3://bucket: access denied (status 403); check the access key and secret");
}

TEST_F(S3FailureTest, AServersWordsCannotForgeALineOfALog) {
  const auto forged = put_with(error_answer("400 Bad", "A\nERROR: [31mB"));
  EXPECT_EQ(message_of(forged), "s3://bucket/key: refused by the server (AERROR31mB)");
  // XML cannot carry the character that begins a terminal's commands.
  const auto colored = put_with(error_answer("400 Bad", "A&#27;[31mB"));
  EXPECT_EQ(message_of(colored), "s3://bucket/key: refused by the server (status 400)");
}

TEST_F(S3FailureTest, SilenceIsATimeout) {
  serve({ScriptedServer::kSilence}, 2);
  options.request_timeout = std::chrono::milliseconds(50);
  EXPECT_ERROR(open()->put("key", {}), ErrorCode::kTimeout);
}

TEST_F(S3FailureTest, NobodyThereIsUnavailable) {
  serve({kOk});
  server.reset();
  EXPECT_ERROR(open()->put("key", {}), ErrorCode::kUnavailable);
}

TEST_F(S3FailureTest, AnAnswerThatMakesNoSenseIsUnavailable) {
  const char* pages[] = {
      "<html>Sign in<br></html>",
      "",
      "{}",
      "<R><Contents><Key>a</Key><Size>-1</Size></Contents></R>",
      "<R><Contents><Key>a</Key><Size>9999999999999999999</Size></Contents></R>",
      "<R><Contents><Key>a</Key><Size>1</Size><LastModified>x</LastModified></"
      "Contents></R>",
      "<R><IsTruncated>true</IsTruncated><NextContinuationToken>t</"
      "NextContinuationToken>"
      "</R>"};
  for (const char* page : pages) {
    const auto store = serve({ScriptedServer::answer("200 OK", page)});
    EXPECT_ERROR(store->list(""), ErrorCode::kUnavailable);
    EXPECT_LE(asked(), 2U);
  }
  EXPECT_ERROR(put_with("rubbish\r\n\r\n"), ErrorCode::kUnavailable);
}

TEST_F(S3FailureTest, KeysOutsideThePrefixAreNotListed) {
  const auto store = serve({ScriptedServer::answer(
      "200 OK",
      "<R><Contents><Key>../etc</Key><Size>1</Size>"
      "<LastModified>2026-01-02T03:04:05Z</LastModified></Contents></R>")});
  EXPECT_TRUE(store->list("run/")->empty());
}

TEST_F(S3FailureTest, AnAnswerLongerThanItsLimitIsCutOff) {
  const auto store = serve({ScriptedServer::answer("200 OK", std::string(1000, 'a'))});
  EXPECT_ERROR(store->get("key", 999), ErrorCode::kInvalid);
  EXPECT_EQ(asked(), 1U);
}

TEST_F(S3FailureTest, AHugeAnnouncedLengthAllocatesNothing) {
  const auto store =
      serve({"HTTP/1.1 200 OK\r\nContent-Length: 9000000000000000000\r\n"
             "Connection: close\r\n\r\nabc"});
  EXPECT_ERROR(store->get("key"), ErrorCode::kUnavailable);
}

TEST_F(S3FailureTest, AConnectionThatEndsInMidBodyIsNoAnswer) {
  const std::string half =
      "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nabc";
  auto store = serve({half, ScriptedServer::answer("200 OK", "abcdef")});
  EXPECT_EQ(text_of(store->get("key").value()), "abcdef");
  store = serve({half});
  EXPECT_ERROR(store->get("key"), ErrorCode::kUnavailable);
}

std::string size_answer(int size) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(size) +
         "\r\nConnection: close\r\n\r\n";
}

std::string range_answer(const std::string& range, const std::string& body) {
  return ScriptedServer::answer("206 Part", body,
                                "Content-Range: bytes " + range + "\r\n");
}

TEST_F(S3FailureTest, ARangeThatBreaksOffIsAskedForFromThereOn) {
  const auto store = serve({size_answer(10),
                            "HTTP/1.1 206 Part\r\nContent-Length: 6\r\nContent-Range: "
                            "bytes 2-7/10\r\nConnection: close\r\n\r\ncde",
                            range_answer("5-7/10", "fgh")});
  const auto source = store->open("key");
  ASSERT_OK(source);
  EXPECT_EQ(text_of((*source)->read_bytes(2, 6).value()), "cdefgh");
  EXPECT_NE(request(1).find("range: bytes=2-7\r\n"), std::string::npos);
  EXPECT_NE(request(2).find("range: bytes=5-7\r\n"), std::string::npos);
}

TEST_F(S3FailureTest, ARangeOtherThanTheOneAskedForIsRefused) {
  const std::pair<std::string, ErrorCode> cases[] = {
      {ScriptedServer::answer("200 OK", "abcdefghij"), ErrorCode::kUnsupported},
      {range_answer("0-5/10", "abcdef"), ErrorCode::kUnsupported},
      {range_answer("2-7/9", "cdefgh"), ErrorCode::kCorrupt},
      {range_answer("2-7/*", "cdefgh"), ErrorCode::kCorrupt},
      {error_answer("416 No", "InvalidRange"), ErrorCode::kCorrupt}};
  for (const auto& [answer, code] : cases) {
    const auto store = serve({size_answer(10), answer});
    const auto source = store->open("key");
    ASSERT_OK(source);
    EXPECT_ERROR((*source)->read_bytes(2, 6), code);
  }
}

TEST_F(S3FailureTest, ARangeWithTooFewBytesIsNoAnswer) {
  const auto store = serve(
      {size_answer(10), range_answer("2-7/10", "cde"), range_answer("5-7/10", "")});
  const auto source = store->open("key");
  ASSERT_OK(source);
  EXPECT_ERROR((*source)->read_bytes(2, 6), ErrorCode::kUnavailable);
  EXPECT_EQ(asked(), 4U);
}

TEST_F(S3FailureTest, AListingGoesOnFromPageToPage) {
  const auto page = [](const std::string& key, const std::string& more) {
    return ScriptedServer::answer(
        "200 OK", "<R>" + more + "<Contents><Key>" + key +
                      "</Key><Size>1</Size><LastModified>2026-01-02T03:04:05Z"
                      "</LastModified></Contents></R>");
  };
  const auto store = serve({page("b",
                                 "<IsTruncated>true</IsTruncated>"
                                 "<NextContinuationToken>t+/=</NextContinuationToken>"),
                            page("a", "")});
  const auto listed = store->list("");
  ASSERT_OK(listed);
  ASSERT_EQ(listed->size(), 2U);
  EXPECT_EQ(listed->at(0).key, "a");
  EXPECT_TRUE(request(0).starts_with("GET /bucket/?list-type=2&prefix= "));
  EXPECT_TRUE(request(1).starts_with(
      "GET /bucket/?continuation-token=t%2B%2F%3D&list-type=2&prefix= "));
}

TEST_F(S3FailureTest, AListingThatNeverEndsIsGivenUp) {
  std::vector<std::string> pages;
  for (int i = 0; i < 200; ++i) {
    pages.push_back(ScriptedServer::answer(
        "200 OK", fmt::format("<R><IsTruncated>true</IsTruncated><NextContinuationToken>"
                              "{}</NextContinuationToken></R>",
                              i)));
  }
  EXPECT_ERROR(serve(pages)->list(""), ErrorCode::kUnavailable);
  EXPECT_LT(asked(), 150U);
}

TEST_F(S3FailureTest, ASizeThatIsNoneIsRefused) {
  const auto store = serve({"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"});
  EXPECT_ERROR(store->open("key"), ErrorCode::kUnavailable);
}

const std::string kBegun =
    ScriptedServer::answer("200 OK", "<R><UploadId>u</UploadId></R>");
const std::string kPartTaken =
    ScriptedServer::answer("200 OK", "", "ETag: \"e&1\"\r\n");
const std::string kCompleted = ScriptedServer::answer("200 OK", "<R/>");

Result<void> upload(ObjectStore& store) {
  auto upload = HOLDFAST_TRY(store.begin_upload("key", 1500));
  HOLDFAST_TRY(upload->append(Bytes(1500)));
  return upload->finish();
}

TEST_F(S3FailureTest, APartThatFailsOnceIsSentAgain) {
  const auto store = serve({kBegun, error_answer("503 No", "SlowDown"), kPartTaken,
                            kPartTaken, kCompleted, size_answer(1500)});
  EXPECT_OK(upload(*store));
  EXPECT_TRUE(request(0).starts_with("POST /bucket/key?uploads= "));
  EXPECT_TRUE(request(2).starts_with("PUT /bucket/key?partNumber=1&uploadId=u "));
  EXPECT_TRUE(request(4).ends_with(
      "<CompleteMultipartUpload>"
      "<Part><PartNumber>1</PartNumber><ETag>&quot;e&amp;1&quot;</ETag></Part>"
      "<Part><PartNumber>2</PartNumber><ETag>&quot;e&amp;1&quot;</ETag></Part>"
      "</CompleteMultipartUpload>"));
}

TEST_F(S3FailureTest, AnErrorInsideAGoodAnswerIsAnError) {
  auto store =
      serve({kBegun, kPartTaken, kPartTaken, error_answer("200 OK", "InternalError"),
             kCompleted, size_answer(1500)});
  EXPECT_OK(upload(*store));
  store =
      serve({kBegun, kPartTaken, kPartTaken, error_answer("200 OK", "InternalError")});
  EXPECT_ERROR(upload(*store), ErrorCode::kUnavailable);
}

TEST_F(S3FailureTest, ACompletionWhoseAnswerIsLostIsFoundByItsSize) {
  const std::string lost = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
  const std::string gone = error_answer("404 No", "NoSuchUpload");
  auto store = serve({kBegun, kPartTaken, kPartTaken, lost, gone, size_answer(1500)});
  EXPECT_OK(upload(*store));
  store = serve({kBegun, kPartTaken, kPartTaken, lost, gone, size_answer(1499)});
  EXPECT_ERROR(upload(*store), ErrorCode::kUnavailable);
  store = serve({kBegun, kPartTaken, kPartTaken, gone});
  EXPECT_ERROR(upload(*store), ErrorCode::kNotFound);
}

TEST_F(S3FailureTest, AFailedUploadAbortsItself) {
  const auto store = serve({kBegun, error_answer("403 No", "AccessDenied")});
  EXPECT_ERROR(upload(*store), ErrorCode::kInvalid);
  EXPECT_TRUE(server->requests().back().starts_with("DELETE /bucket/key?uploadId=u "));
}

TEST_F(S3FailureTest, AServerMayBeUnableToListUploads) {
  const auto store = serve({error_answer("501 No", "NotImplemented")});
  EXPECT_ERROR(store->list_uploads(""), ErrorCode::kUnsupported);
}

TEST_F(S3FailureTest, ASessionTokenGoesWithEveryRequest) {
  serve({kOk});
  options.credentials.session_token = "token==";
  EXPECT_OK(open()->put("key", {}));
  EXPECT_NE(request(0).find("x-amz-security-token: token==\r\n"), std::string::npos);
  EXPECT_NE(request(0).find("x-amz-security-token,Signature="), std::string::npos);
}

}  // namespace
}  // namespace holdfast

#endif

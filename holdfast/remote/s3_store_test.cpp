// Against a real server: what it stores, and what becomes of it when it dies.
#include "holdfast/remote/s3_store.h"

#include <gtest/gtest.h>

#ifdef HOLDFAST_HAS_S3

#include <optional>

#include "holdfast/base/testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/remote/s3_server_testing.h"

namespace holdfast {
namespace {

constexpr int64_t kPart = 64 << 10;

Bytes pattern(int64_t size) {
  Bytes bytes(static_cast<size_t>(size));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * i >> 5);
  return bytes;
}

class S3StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (RcloneServer::program().empty()) {
      GTEST_SKIP() << "no rclone: scripts/setup.sh installs it";
    }
    server.emplace();
  }

  S3Options options() const {
    S3Options options = options_for(server->endpoint());
    options.part_bytes = kPart;
    options.attempts = 3;
    options.first_pause = std::chrono::milliseconds(1);
    return options;
  }
  std::unique_ptr<ObjectStore> open_store() { return open_s3(*env, options()).value(); }

  // Appends in pieces whose ends are not the ends of parts.
  static Result<void> upload(ObjectStore& store, const std::string& key,
                             ByteView bytes) {
    auto upload =
        HOLDFAST_TRY(store.begin_upload(key, static_cast<int64_t>(bytes.size())));
    for (size_t at = 0; at < bytes.size(); at += 10'007) {
      const size_t count = std::min<size_t>(10'007, bytes.size() - at);
      HOLDFAST_TRY(upload->append(bytes.subspan(at, count)));
    }
    return upload->finish();
  }
  static std::vector<std::string> keys(ObjectStore& store, const std::string& prefix) {
    std::vector<std::string> keys;
    for (const ObjectInfo& object : store.list(prefix).value())
      keys.push_back(object.key);
    return keys;
  }

  const std::unique_ptr<Env> env = make_posix_env();
  std::optional<RcloneServer> server;
};

TEST_F(S3StoreTest, WhatIsPutIsThereUntilItIsRemoved) {
  const auto store = open_store();
  EXPECT_ERROR(store->get("a/b.json"), ErrorCode::kNotFound);
  EXPECT_ERROR(store->open("a/b.json"), ErrorCode::kNotFound);
  ASSERT_OK(store->put("a/b.json", bytes_of("one")));
  ASSERT_OK(store->put("a/b.json", bytes_of("second")));
  EXPECT_EQ(text_of(store->get("a/b.json").value()), "second");
  const auto listed = store->list("a/");
  ASSERT_OK(listed);
  ASSERT_EQ(listed->size(), 1U);
  EXPECT_EQ(listed->at(0).size, 6);
  EXPECT_LT(env->wall_now() - listed->at(0).modified, std::chrono::hours(1));
  ASSERT_OK(store->remove("a/b.json"));
  ASSERT_OK(store->remove("a/b.json"));
  EXPECT_TRUE(store->list("")->empty());
}

TEST_F(S3StoreTest, AnEmptyObjectIsAnObject) {
  const auto store = open_store();
  ASSERT_OK(store->put("empty", {}));
  EXPECT_TRUE(store->get("empty")->empty());
  const auto source = store->open("empty");
  ASSERT_OK(source);
  EXPECT_EQ((*source)->size(), 0);
  EXPECT_OK((*source)->read(0, {}));
}

TEST_F(S3StoreTest, AnObjectAboveTheLimitIsRefused) {
  const auto store = open_store();
  ASSERT_OK(store->put("a", bytes_of("12345")));
  EXPECT_OK(store->get("a", 5));
  EXPECT_ERROR(store->get("a", 4), ErrorCode::kInvalid);
}

TEST_F(S3StoreTest, KeysOfAllKindsKeepTheirNames) {
  const auto store = open_store();
  const std::vector<std::string> names = {
      "a b",  "a%20b", "a+b",     "a&b=c?d#e",        "caf\xc3\xa9/\xf0\x9f\x98\x80",
      "<&>'", "a@b:c", "p.q/~_-", "rank-0000.objects"};
  for (const std::string& name : names) {
    ASSERT_OK(store->put("keys/" + name, bytes_of(name)));
  }
  for (const std::string& name : names) {
    const auto bytes = store->get("keys/" + name);
    ASSERT_OK(bytes);
    EXPECT_EQ(text_of(*bytes), name);
  }
  std::vector<std::string> want;
  for (const std::string& name : names) want.push_back("keys/" + name);
  std::sort(want.begin(), want.end());
  EXPECT_EQ(keys(*store, "keys/"), want);
  EXPECT_EQ(keys(*store, "keys/a+"), std::vector<std::string>{"keys/a+b"});
  for (const std::string& name : names) ASSERT_OK(store->remove("keys/" + name));
  EXPECT_TRUE(keys(*store, "keys/").empty());
}

TEST_F(S3StoreTest, ListsMoreThanOnePage) {
  const auto store = open_store();
  for (int i = 0; i < 1003; ++i) {
    ASSERT_OK(store->put("many/" + std::to_string(10'000 + i), {}));
  }
  EXPECT_EQ(keys(*store, "many/").size(), 1003U);
  EXPECT_EQ(keys(*store, "many/1100").size(), 3U);
}

TEST_F(S3StoreTest, ReadsAnyRange) {
  const auto store = open_store();
  const Bytes bytes = pattern(100'000);
  ASSERT_OK(store->put("object", bytes));
  const auto source = store->open("object");
  ASSERT_OK(source);
  EXPECT_EQ((*source)->size(), 100'000);
  EXPECT_EQ((*source)->name(), "s3://bucket/object");
  for (const auto& [offset, count] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {0, 100'000}, {99'999, 1}, {12'345, 54'321}, {100'000, 0}}) {
    const auto read = (*source)->read_bytes(offset, count);
    ASSERT_OK(read);
    EXPECT_EQ(*read, copy_of(ByteView(bytes).subspan(static_cast<size_t>(offset),
                                                     static_cast<size_t>(count))));
  }
  EXPECT_ERROR((*source)->read_bytes(99'999, 2), ErrorCode::kCorrupt);
}

TEST_F(S3StoreTest, AnObjectThatWasReplacedByAShorterOneIsCorrupt) {
  const auto store = open_store();
  ASSERT_OK(store->put("object", pattern(1000)));
  const auto source = store->open("object");
  ASSERT_OK(source);
  ASSERT_OK(store->put("object", pattern(500)));
  EXPECT_ERROR((*source)->read_bytes(0, 100), ErrorCode::kCorrupt);
  EXPECT_ERROR((*source)->read_bytes(900, 100), ErrorCode::kCorrupt);
}

TEST_F(S3StoreTest, UploadsOfAllSizesAroundTheEndsOfPartsReadBack) {
  const auto store = open_store();
  for (const int64_t size :
       {int64_t{0}, int64_t{1}, kPart - 1, kPart, kPart + 1, 2 * kPart, 4 * kPart - 1,
        4 * kPart, 4 * kPart + 1, 9 * kPart + 77}) {
    const Bytes bytes = pattern(size);
    ASSERT_OK(upload(*store, "object", bytes));
    const auto seen = store->get("object");
    ASSERT_OK(seen);
    EXPECT_TRUE(*seen == bytes) << size;
  }
  EXPECT_TRUE(store->list_uploads("")->empty());
}

TEST_F(S3StoreTest, AnUploadOfAnotherSizeThanAnnouncedIsNoObject) {
  const auto store = open_store();
  for (const int64_t size : {int64_t{10}, 3 * kPart}) {
    auto shorter = store->begin_upload("object", size);
    ASSERT_OK(shorter);
    ASSERT_OK((*shorter)->append(pattern(size - 1)));
    EXPECT_ERROR((*shorter)->finish(), ErrorCode::kInvalid);
    auto longer = store->begin_upload("object", size);
    ASSERT_OK(longer);
    ASSERT_OK((*longer)->append(pattern(size)));
    EXPECT_ERROR((*longer)->append(pattern(1)), ErrorCode::kInvalid);
  }
  EXPECT_ERROR(store->begin_upload("object", -1), ErrorCode::kInvalid);
  EXPECT_TRUE(store->list("")->empty());
}

TEST_F(S3StoreTest, AnUploadThatIsAbortedOrDroppedLeavesNothing) {
  const auto store = open_store();
  auto aborted = store->begin_upload("object", 4 * kPart);
  ASSERT_OK(aborted);
  ASSERT_OK((*aborted)->append(pattern(3 * kPart - 5)));
  EXPECT_EQ(store->list_uploads("")->size(), 1U);
  ASSERT_OK((*aborted)->abort());
  EXPECT_TRUE(store->list_uploads("")->empty());
  {
    auto dropped = store->begin_upload("object", 4 * kPart);
    ASSERT_OK(dropped);
    ASSERT_OK((*dropped)->append(pattern(3 * kPart - 5)));
  }
  EXPECT_TRUE(store->list_uploads("")->empty());
  EXPECT_TRUE(store->list("")->empty());
}

TEST_F(S3StoreTest, UploadsOfAnotherProcessAreListedByPrefixAndAborted) {
  const auto store = open_store();
  auto orphan = store->begin_upload("run/data/x", 2 * kPart);
  auto other = store->begin_upload("other", 2 * kPart);
  ASSERT_OK(orphan);
  ASSERT_OK(other);
  const auto successor = open_store();
  const auto found = successor->list_uploads("run/");
  ASSERT_EQ(found->size(), 1U);
  EXPECT_LT(found->at(0).started, env->wall_now() + std::chrono::hours(1));
  EXPECT_OK(successor->abort_upload(found->at(0)));
  ASSERT_EQ(store->list_uploads("")->size(), 1U);
  EXPECT_EQ(store->list_uploads("")->at(0).key, "other");
}

TEST_F(S3StoreTest, WrongKeysAreOneClearSentence) {
  S3Options wrong = options();
  wrong.credentials.secret_key = "wrongsecret";
  const auto store = open_s3(*env, wrong);
  ASSERT_OK(store);
  const auto outcome = (*store)->put("a", bytes_of("x"));
  EXPECT_ERROR(outcome, ErrorCode::kInvalid);
  EXPECT_EQ(
      message_of(outcome),
      "s3://bucket: access denied (SignatureDoesNotMatch); check the access key and "
      "secret");
  EXPECT_ERROR((*store)->open("a"), ErrorCode::kInvalid);
  EXPECT_ERROR((*store)->list(""), ErrorCode::kInvalid);
  EXPECT_ERROR((*store)->begin_upload("a", 2 * kPart), ErrorCode::kInvalid);
  wrong.credentials.access_key = "nobodyknows";
  EXPECT_EQ(message_of((*open_s3(*env, wrong))->get("a")),
            "s3://bucket: access denied (InvalidAccessKeyId); check the access key and "
            "secret");
}

TEST_F(S3StoreTest, ACertificateThatNobodyTrustsIsRefused) {
  server.emplace(true);
  const auto outcome = open_store()->put("a", bytes_of("x"));
  EXPECT_ERROR(outcome, ErrorCode::kInvalid);
  EXPECT_NE(message_of(outcome).find("certificate"), std::string::npos)
      << message_of(outcome);
}

TEST_F(S3StoreTest, OverTlsLargeBodiesGoUnsignedAndReadBack) {
  server.emplace(true);
  S3Options trusting = options();
  trusting.ca_file = server->certificate();
  trusting.part_bytes = 2 * kPart;
  const auto store = open_s3(*env, trusting);
  ASSERT_OK(store);
  const Bytes bytes = pattern(7 * kPart);
  ASSERT_OK(upload(**store, "object", bytes));
  EXPECT_TRUE((*store)->get("object").value() == bytes);
}

TEST_F(S3StoreTest, AMissingBucketIsNamed) {
  S3Options missing = options();
  missing.bucket = "nowhere";
  const auto store = open_s3(*env, missing);
  ASSERT_OK(store);
  const auto outcome = (*store)->list("");
  EXPECT_ERROR(outcome, ErrorCode::kNotFound);
  EXPECT_EQ(message_of(outcome), "s3://nowhere: no such bucket");
}

TEST_F(S3StoreTest, AServerThatDiesInMidUploadIsUnavailableAndServesAgainLater) {
  const auto store = open_store();
  ASSERT_OK(store->put("older", bytes_of("safe")));
  const Bytes bytes = pattern(20 * kPart);
  auto cut = store->begin_upload("object", 20 * kPart);
  ASSERT_OK(cut);
  ASSERT_OK((*cut)->append(ByteView(bytes).first(2 * kPart)));
  server->kill();
  Result<void> outcome = (*cut)->append(ByteView(bytes).subspan(2 * kPart));
  if (outcome.ok()) outcome = (*cut)->finish();
  EXPECT_ERROR(outcome, ErrorCode::kUnavailable);
  EXPECT_NE(message_of(outcome).find("no success in 3 attempts"), std::string::npos)
      << message_of(outcome);
  EXPECT_ERROR((*cut)->finish(), ErrorCode::kUnavailable);
  (*cut).reset();
  server->restart();
  EXPECT_EQ(keys(*store, ""), std::vector<std::string>{"older"});
  ASSERT_OK(upload(*store, "object", bytes));
  EXPECT_TRUE(store->get("object").value() == bytes);
}

TEST_F(S3StoreTest, SeveralThreadsShareAStore) {
  const auto store = open_store();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&store, i] {
      const std::string key = "thread-" + std::to_string(i);
      const Bytes bytes = pattern(3 * kPart + i);
      EXPECT_OK(upload(*store, key, bytes));
      EXPECT_TRUE(store->open(key).value()->read_bytes(0, 3 * kPart + i).value() ==
                  bytes);
    });
  }
  threads.clear();
  EXPECT_EQ(store->list("thread-")->size(), 4U);
}

}  // namespace
}  // namespace holdfast

#endif

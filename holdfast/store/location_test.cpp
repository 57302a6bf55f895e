#include "holdfast/store/location.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/store/object_store_env.h"
#include "holdfast/store/run.h"
#include "holdfast/store/tier.h"

namespace holdfast {
namespace {

Result<std::shared_ptr<ObjectStore>> no_bucket(const std::string& name) {
  return not_found("s3://{}: no such bucket", name);
}

const char* const kRefused[] = {"gs://bucket/gpt",  "S3://bucket/gpt", "ftp://host/gpt",
                                "file:///runs/gpt", "x-y.z+1://a",     "gs:/bucket/gpt",
                                "S3:/bucket/gpt"};

TEST(Place, ASchemeThatNobodySpeaksIsRefusedByName) {
  for (const std::string place : kRefused) {
    const Result<void> checked = check_place(place);
    EXPECT_ERROR(checked, ErrorCode::kInvalid);
    const std::string scheme = place.substr(0, place.find(':'));
    EXPECT_NE(message_of(checked).find("scheme \"" + scheme), std::string::npos);
    EXPECT_FALSE(is_object_path(place));
  }
  EXPECT_ERROR(check_place(""), ErrorCode::kInvalid);
}

TEST(Place, FoldersAndObjectStoresAreNot) {
  for (const char* const place :
       {"gpt", "/runs/gpt", "c:foo", "c:/foo", "a:b/c", "runs/gs://x", "./gs://x",
        "step:/x", "://x", "1a://x"}) {
    EXPECT_OK(check_place(place));
    EXPECT_FALSE(is_object_path(place)) << place;
  }
  EXPECT_OK(check_place("s3://bucket/gpt"));
  EXPECT_TRUE(is_object_path("s3://bucket/gpt"));
  EXPECT_TRUE(is_object_path("s3:/bucket/gpt"));
}

TEST(Place, NoSchemeBecomesAFolder) {
  MemoryEnv env(1);
  ObjectStoreEnv all(env, no_bucket);
  for (const char* const place : kRefused) {
    EXPECT_ERROR(Run::create_or_open(env, place), ErrorCode::kInvalid);
    EXPECT_ERROR(Run::open(env, place), ErrorCode::kInvalid);
    EXPECT_ERROR(open_tier(env, place, no_bucket), ErrorCode::kInvalid);
    EXPECT_ERROR(all.create_folder(place), ErrorCode::kInvalid);
    EXPECT_ERROR(all.info(place), ErrorCode::kInvalid);
    EXPECT_ERROR(all.list(place), ErrorCode::kInvalid);
    EXPECT_ERROR(all.open(place, {}), ErrorCode::kInvalid);
    EXPECT_ERROR(all.rename("/a", place), ErrorCode::kInvalid);
  }
  EXPECT_ERROR(Run::create_or_open(env, ""), ErrorCode::kInvalid);
  EXPECT_ERROR(open_tier(env, "", no_bucket), ErrorCode::kInvalid);
}

TEST(Place, ATierInAnObjectStoreNeedsTheKeysOfTheVariables) {
  MemoryEnv env(1);
  const auto unset = [](const std::string&) { return std::optional<std::string>(); };
  EXPECT_EQ(open_tier(env, "/runs/gpt", unset).value()->name(), "/runs/gpt");
  EXPECT_FALSE(open_tier(env, "s3://bucket/gpt", unset).ok());
}

}  // namespace
}  // namespace holdfast

// A run in an object store on a real S3 server.
#include <gtest/gtest.h>

#ifdef HOLDFAST_HAS_S3

#include "holdfast/base/testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/remote/s3_server_testing.h"
#include "holdfast/store/object_store_run.h"

namespace holdfast {
namespace {

constexpr int64_t kPart = 64 << 10;

TEST(S3RunTest, ACheckpointIsCommittedRestoredAndRemoved) {
  if (RcloneServer::program().empty()) {
    GTEST_SKIP() << "no rclone: scripts/setup.sh installs it";
  }
  RcloneServer server;
  const std::unique_ptr<Env> env = make_posix_env();
  S3Options options = options_for(server.endpoint());
  options.part_bytes = kPart;
  const auto store = open_s3(*env, options).value();
  auto tier = ObjectStoreRun::create(*store, "runs/gpt").value();
  const Bytes shard = Bytes(3 * kPart, std::byte{7});
  const ObjectStoreStep steps[] = {{1, 1, 0xa}, {1, 2, 0xb}};
  for (const ObjectStoreStep& step : steps) {
    auto file = tier.create_file(step.attempt, "rank-0000.safetensors", 3 * kPart);
    ASSERT_OK(file);
    ASSERT_OK((*file)->append(shard));
    ASSERT_OK((*file)->finish());
    const std::vector<ManifestFile> files = {{"rank-0000.safetensors", 3 * kPart, ""}};
    ASSERT_OK(tier.commit(step, bytes_of("manifest"), files));
  }
  // A third attempt dies after it uploaded its data and before it wrote its manifest.
  ASSERT_OK((*tier.create_file(0xc, "objects.json", 0))->finish());
  EXPECT_EQ(tier.steps().value(), (std::vector<ObjectStoreStep>{steps[1], steps[0]}));
  EXPECT_EQ(text_of(tier.read_manifest(steps[1]).value()), "manifest");
  const auto source = tier.open(steps[1], "rank-0000.safetensors");
  ASSERT_OK(source);
  EXPECT_TRUE((*source)->read_bytes(0, 3 * kPart).value() == shard);
  const WallTime soon = env->wall_now() + std::chrono::hours(1);
  EXPECT_EQ(tier.sweep(soon, {}).value(), 1);
  ASSERT_OK(tier.remove(steps[1]));
  ASSERT_OK(tier.remove(steps[0]));
  EXPECT_TRUE(store->list("")->empty());
}

}  // namespace
}  // namespace holdfast

#endif

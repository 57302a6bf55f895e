// Calls of reshard() that are interrupted leave finished files, which the next call keeps
// if they are right.
#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "holdfast/reshard/reshard_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/store/owner.h"
#include "holdfast/store/run.h"
#include "holdfast/store/step_check.h"

namespace holdfast::reshard_test {
namespace {

using testing::HasSubstr;

TEST_F(Reshard, AnInterruptedCallIsContinued) {
  ASSERT_OK(cut("/gpt2.safetensors", "/whole", "tp=2,pp=4"));
  for (const int64_t after : {1, 30'000, 60'000, 90'000}) {
    EXPECT_ERROR(cut("/gpt2.safetensors", "/again", stopped_after(after, "tp=2,pp=4")),
                 ErrorCode::kUnavailable);
    EXPECT_FALSE(env_.info("/again").ok());
  }
  const Resharded done = cut("/gpt2.safetensors", "/again", "tp=2,pp=4").value();
  EXPECT_GT(done.kept, 0);
  EXPECT_LT(done.kept, 8);
  EXPECT_EQ(shards("/again"), shards("/whole"));
  EXPECT_FALSE(env_.info("/.again.reshard").ok());
}

TEST_F(Reshard, AnInterruptedFolderOfDcpIsContinued) {
  ReshardOptions dcp = options("tp=2,pp=4");
  dcp.format = "dcp";
  ASSERT_OK(cut("/gpt2.safetensors", "/whole", dcp));
  for (const int64_t after : {1, 60'000, 120'000}) {
    ReshardOptions stopped = stopped_after(after, "tp=2,pp=4");
    stopped.format = "dcp";
    EXPECT_ERROR(cut("/gpt2.safetensors", "/again", stopped), ErrorCode::kUnavailable);
    EXPECT_FALSE(env_.info("/again").ok());
    for (const auto& [name, bytes] : left("/.again.reshard/files")) {
      EXPECT_TRUE(name.ends_with(".distcp")) << name;  // no part of a file is left
    }
  }
  ReshardOptions watched = dcp;
  std::pair<int64_t, int64_t> counted;
  watched.reading.progress = [&](int64_t seen, int64_t all) { counted = {seen, all}; };
  const Resharded done = cut("/gpt2.safetensors", "/again", watched).value();
  EXPECT_GT(done.kept, 0);
  EXPECT_LT(done.kept, 8);
  EXPECT_EQ(counted.first, counted.second);  // files that are kept count, too
  EXPECT_EQ(left("/again"), left("/whole"));
  EXPECT_FALSE(env_.info("/.again.reshard").ok());
  // Another process is writing the target.
  ReshardOptions slow = dcp, other = dcp;
  other.identity = Identity{.host = "b", .pid = 2};
  int calls = 0;
  slow.reading.progress = [&](int64_t, int64_t) {
    if (++calls == 1) {
      EXPECT_ERROR(cut("/gpt2.safetensors", "/owned", other), ErrorCode::kConflict);
    }
  };
  ASSERT_OK(cut("/gpt2.safetensors", "/owned", slow));
}

TEST_F(Reshard, AWrongFileInTheHiddenFolderGivesNoTarget) {
  ReshardOptions dcp = options("tp=2");
  dcp.format = "dcp";
  ReshardOptions stopped =
      stopped_after(plan_reshard(env_, "/gpt2.safetensors", dcp).value().target_bytes(),
                    "tp=2");
  stopped.format = "dcp";
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped), ErrorCode::kUnavailable);
  const Path file = "/.a.reshard/files/__0_0.distcp";
  Bytes bytes = env_.read_file(file).value();
  bytes[bytes.size() / 2] ^= std::byte{1};
  ASSERT_OK(env_.write_file(file, bytes));
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", dcp), ErrorCode::kCorrupt);
  EXPECT_FALSE(env_.info("/a").ok());
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", dcp).value().kept, 0);
}

TEST_F(Reshard, AStopLeavesFinishedShardsAndNoOthers) {
  const Path files = "/.a.reshard/files";
  const auto stop_after = [&](int64_t bytes) {
    EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped_after(bytes, "tp=2,pp=4")),
                 ErrorCode::kUnavailable);
  };
  stop_after(90'000);
  const std::map<std::string, Bytes> before = left(files);
  ASSERT_TRUE(before.contains("rank-0000.index.json"));
  EXPECT_EQ(before.size() % 2, 0u);  // each shard has its index
  stop_after(0);
  EXPECT_EQ(left(files), before);
  // A shard that is not finished loses its index before it is written anew.
  ASSERT_OK(env_.remove_file(files / "rank-0000.safetensors"));
  stop_after(0);
  EXPECT_FALSE(left(files).contains("rank-0000.index.json"));
  EXPECT_FALSE(left(files).contains("rank-0000.safetensors"));
  ASSERT_OK(cut("/gpt2.safetensors", "/a", "tp=2,pp=4"));
  const Path folder = find_any(env_, "/a").value().path;
  EXPECT_TRUE(check_step(env_, folder, Depth::kFull).value().whole());
  expect_same_values("/gpt2.safetensors", "/a");
}

TEST_F(Reshard, FilesWithAnotherSealAreRemoved) {
  const int64_t all =
      plan_reshard(env_, "/gpt2.safetensors", options("tp=2")).value().files->bytes();
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped_after(all, "tp=2")),
               ErrorCode::kUnavailable);
  const Path path = "/.a.reshard/files/rank-0000.index.json";
  ShardIndex index =
      decode_shard_index(env_.read_file(path).value(), path.native()).value();
  index.pieces.front().seal.lanes[0] += 1;
  ASSERT_OK(env_.write_file(path, encode_shard_index(index)));
  const Result<Resharded> differs = cut("/gpt2.safetensors", "/a", "tp=2");
  ASSERT_FALSE(differs.ok());
  EXPECT_EQ(differs.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(differs.error().message(), HasSubstr("; expected"));
  EXPECT_THAT(differs.error().message(), HasSubstr("begins anew"));
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", "tp=2").value().kept, 0);
}

TEST_F(Reshard, OnlyFilesThatAreContinuedSaveSpace) {
  ReshardOptions whole = options("whole");
  const int64_t bytes =
      plan_reshard(env_, "/gpt2.safetensors", whole).value().files->bytes();
  ReshardOptions stopped = stopped_after(bytes, "whole");
  stopped.format = "native";
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped), ErrorCode::kUnavailable);
  const int64_t capacity = int64_t{1} << 30;
  env_.set_capacity(capacity);
  const int64_t used = capacity - env_.free_space("/").value();
  env_.set_capacity(used + (int64_t{16} << 20) + bytes / 2);
  whole.format = "safetensors";
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", whole), ErrorCode::kNoSpace);
  whole.format = "native";
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", whole).value().kept, 1);
}

TEST_F(Reshard, AnInterruptedFolderNeedsRoomOnlyForItsRest) {
  write_megatron("/megatron.safetensors");
  continue_on_a_full_disk("/gpt2.safetensors", "dcp");
  continue_on_a_full_disk("/megatron.safetensors", "megatron");
}

TEST_F(Reshard, CopiesInAFolderOfMegatronAreCompared) {
  write_megatron("/megatron.safetensors");
  ReshardOptions wanted = options("tp=2");
  wanted.format = "megatron";
  const ReshardPlan plan = plan_reshard(env_, "/megatron.safetensors", wanted).value();
  ReshardOptions stopped = stopped_after(plan.target_bytes(), "tp=2");
  stopped.format = "megatron";
  EXPECT_ERROR(cut("/megatron.safetensors", "/a", stopped), ErrorCode::kUnavailable);
  // The second rank has a copy of each norm, whose values it has nowhere else.
  const OpenedAny source = open_any(env_, "/megatron.safetensors").value();
  const auto norm =
      source.contents.collection.find("model.decoder.layers.1.pre_mlp_layernorm.weight");
  Bytes value(32);
  ASSERT_OK(read_canonical(source.contents, *norm, 0, value));
  const Path file = "/.a.reshard/files/iter_0000005/mp_rank_01/model_optim_rng.pt";
  Bytes bytes = env_.read_file(file).value();
  const auto found =
      std::search(bytes.begin(), bytes.end(), value.begin(), value.end());
  ASSERT_NE(found, bytes.end());
  *found ^= std::byte{1};
  ASSERT_OK(env_.write_file(file, bytes));
  const Result<Resharded> done = cut("/megatron.safetensors", "/a", wanted);
  EXPECT_ERROR(done, ErrorCode::kCorrupt);
  EXPECT_FALSE(env_.info("/a").ok());
  EXPECT_EQ(cut("/megatron.safetensors", "/a", wanted).value().kept, 0);
}

TEST_F(Reshard, AFolderOfMegatronForOtherRulesOrWordsIsNotContinued) {
  write_megatron("/megatron.safetensors");
  ReshardOptions wanted = options("tp=2");
  wanted.format = "megatron";
  const auto interrupt = [&] {
    ReshardOptions stopped = stopped_after(80'000, "tp=2");
    stopped.format = "megatron";
    EXPECT_ERROR(cut("/megatron.safetensors", "/a", stopped), ErrorCode::kUnavailable);
  };
  const auto kept = [&](const ReshardOptions& how) {
    interrupt();
    const Result<Resharded> done = cut("/megatron.safetensors", "/a", how);
    EXPECT_OK(done);
    EXPECT_OK(env_.remove_all("/a"));
    return done.ok() ? done->kept : -1;
  };
  EXPECT_EQ(kept(wanted), 1);
  ReshardOptions other = wanted;
  other.vocabulary = 1001;
  EXPECT_EQ(kept(other), 0);
  const auto with_rule = [&](const char* words) {
    const std::string text = fmt::format(
        R"({{"holdfast": "rules", "version": 1, "name": "own", "rules": {{
        "embedding.word_embeddings.weight": "first vocabulary tied",
        "layers.#.mlp.linear_fc1.weight": "{}",
        "layers.#.pre_mlp_layernorm.weight": "whole",
        "final_layernorm.weight": "last whole"}}}})",
        words);
    EXPECT_OK(env_.write_file("/rules.json", bytes_of(text)));
    ReshardOptions ruled = wanted;
    ruled.rules = "/rules.json";
    return ruled;
  };
  EXPECT_EQ(kept(with_rule("columns")), 0);
  EXPECT_THAT(refusal("/megatron.safetensors", "/b", with_rule("columns/2")),
              HasSubstr("components of rows"));
}

// A disk that fails says nothing about the files.
TEST_F(Reshard, OnlyFilesThatDifferAreRemovedAfterTheCheck) {
  ReshardOptions dcp = options("tp=2");
  dcp.format = "dcp";
  const ReshardPlan plan = plan_reshard(env_, "/gpt2.safetensors", dcp).value();
  FaultyEnv failing(env_);
  ReshardOptions broken = dcp;
  broken.threads = 1;
  broken.reading.progress = [&, begun = false](int64_t done, int64_t) mutable {
    if (done < plan.target_bytes() + 1 || std::exchange(begun, true)) return;
    failing.fail_from(Op::kRead);
  };
  EXPECT_ERROR(reshard(failing, plan_reshard(failing, "/gpt2.safetensors", dcp).value(),
                       "/a", broken),
               ErrorCode::kIo);
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", dcp).value().kept, 2);
}

// A kill after the target has got its name leaves the hidden folder without its files.
TEST_F(Reshard, AHiddenFolderWhoseFilesAreTheTargetIsRemoved) {
  ASSERT_OK(cut("/gpt2.safetensors", "/a", "tp=2"));
  ASSERT_OK(env_.create_folder("/.a.reshard"));
  ASSERT_OK(Run::create_or_open(env_, "/.a.reshard"));
  ASSERT_OK(env_.create_folder("/.a.reshard/files"));
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", "tp=2"), ErrorCode::kConflict);
  EXPECT_OK(env_.info("/.a.reshard"));  // an interrupted call that may be continued
  ASSERT_OK(env_.remove_folder("/.a.reshard/files"));
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", "tp=2"), ErrorCode::kConflict);
  EXPECT_FALSE(env_.info("/.a.reshard").ok());
  ASSERT_OK(env_.create_folder("/.a.reshard"));  // a kill while it was removed
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", "tp=2"), ErrorCode::kConflict);
  EXPECT_FALSE(env_.info("/.a.reshard").ok());
}

// The owner of the hidden run is at work for longer than its lease.
TEST_F(Reshard, ALongCallKeepsItsRunAndLetsGoAtTheEnd) {
  const auto renewed = [&] {
    const auto owner = read_owner(env_, "/.a.reshard");
    return owner.ok() && *owner && (*owner)->renewed == env_.wall_now();
  };
  ReshardOptions other = options("tp=2");
  other.identity = Identity{.host = "b", .pid = 2};
  ReshardOptions slow = options("tp=2");
  int calls = 0;
  slow.reading.progress = [&](int64_t, int64_t) {
    if (++calls > 4) return;
    env_.advance(std::chrono::seconds(50));
    for (int i = 0; i < 5000 && !renewed(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_ERROR(cut("/gpt2.safetensors", "/a", other), ErrorCode::kConflict);
  };
  ASSERT_OK(cut("/gpt2.safetensors", "/a", slow));
  EXPECT_GE(calls, 4);
  EXPECT_TRUE(read_owner(env_, "/a").value()->released);
}

// In a folder where others may write, somebody may have put the link there.
TEST_F(Reshard, ALinkInThePlaceOfTheHiddenFolderIsNotFollowed) {
  const TempFolder temp;
  const auto disk = make_posix_env();
  const Path source = temp.path() / "gpt2.safetensors";
  const Path precious = temp.path() / "home" / "files" / "precious";
  ASSERT_OK(disk->write_file(source, env_.read_file("/gpt2.safetensors").value()));
  ASSERT_OK(disk->create_folders(folder_of(precious)));
  ASSERT_OK(disk->write_file(precious, bytes_of("mine")));
  const ReshardPlan plan = plan_reshard(*disk, source, options("tp=2")).value();
  const Path hidden = temp.path() / ".a.reshard";
  std::filesystem::create_directory_symlink("home", hidden);
  EXPECT_ERROR(reshard(*disk, plan, temp.path() / "a", options("tp=2")),
               ErrorCode::kConflict);
  std::filesystem::remove(hidden);
  std::filesystem::create_directory(hidden);
  std::filesystem::create_directory_symlink("../home/files", hidden / "files");
  EXPECT_ERROR(reshard(*disk, plan, temp.path() / "a", options("tp=2")),
               ErrorCode::kConflict);
  EXPECT_EQ(disk->list(folder_of(precious)).value().size(), 1u);
  EXPECT_EQ(disk->list(temp.path() / "home").value().size(), 1u);
}

TEST_F(Reshard, FilesForAnotherTargetAreNotKept) {
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped_after(90'000, "tp=2,pp=4")),
               ErrorCode::kUnavailable);
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", "tp=4,pp=2").value().kept, 0);
  expect_same_values("/gpt2.safetensors", "/a");
}

}  // namespace
}  // namespace holdfast::reshard_test

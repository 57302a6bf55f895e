#include "holdfast/env/free_memory.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"

namespace holdfast {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

void put(Env& env, const Path& path, const std::string& text) {
  ASSERT_OK(env.create_folders(path.parent_path()));
  ASSERT_OK(env.write_file(path, bytes_of(text)));
}

TEST(FreeMemory, IsWhatTheMachineHasOrAGibibyteIfThatIsNotKnown) {
  MemoryEnv env;
  EXPECT_EQ(free_memory(env), 1024 * kMib);
  put(env, "/proc/meminfo", "MemFree: 1 kB\nMemAvailable:    4096 kB\n");
  EXPECT_EQ(free_memory(env), 4 * kMib);
}

TEST(FreeMemory, IsNotMoreThanTheControlGroupMayUse) {
  MemoryEnv env;
  put(env, "/proc/meminfo", "MemAvailable: 1048576 kB\n");
  put(env, "/proc/self/cgroup", "0::/job/7\n");
  put(env, "/sys/fs/cgroup/job/7/memory.max", "max\n");
  put(env, "/sys/fs/cgroup/job/7/memory.current", "104857600\n");
  EXPECT_EQ(free_memory(env), 1024 * kMib);
  put(env, "/sys/fs/cgroup/job/7/memory.max", "209715200\n");
  EXPECT_EQ(free_memory(env), 100 * kMib);
  // Files that were read take memory only until somebody needs it.
  put(env, "/sys/fs/cgroup/job/7/memory.stat",
      "anon 1\nfile 3\ninactive_file 10485760\nactive_file 20971520\n");
  EXPECT_EQ(free_memory(env), 130 * kMib);
}

TEST(FreeMemory, IsNotMoreThanAGroupAroundThatOfTheProcessMayUse) {
  MemoryEnv env;
  put(env, "/proc/meminfo", "MemAvailable: 1048576 kB\n");
  put(env, "/proc/self/cgroup", "0::/job/7/step\n");
  put(env, "/sys/fs/cgroup/job/7/step/memory.max", "max\n");
  put(env, "/sys/fs/cgroup/job/7/step/memory.current", "1048576\n");
  put(env, "/sys/fs/cgroup/job/memory.max", "209715200\n");
  put(env, "/sys/fs/cgroup/job/memory.current", "104857600\n");
  EXPECT_EQ(free_memory(env), 100 * kMib);
}

TEST(FreeMemory, GroupsOfVersion1AreLookedAtToo) {
  MemoryEnv env;
  put(env, "/proc/meminfo", "MemAvailable: 1048576 kB\n");
  put(env, "/proc/self/cgroup", "5:cpu:/other\n4:memory:/job/7\n");
  put(env, "/sys/fs/cgroup/memory/job/7/memory.limit_in_bytes", "9223372036854771712\n");
  put(env, "/sys/fs/cgroup/memory/job/7/memory.usage_in_bytes", "1048576\n");
  EXPECT_EQ(free_memory(env), 1024 * kMib);
  put(env, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "209715200\n");
  put(env, "/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "104857600\n");
  EXPECT_EQ(free_memory(env), 100 * kMib);
}

}  // namespace
}  // namespace holdfast

#include "holdfast/cli/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "holdfast/env/memory_env.h"

namespace holdfast {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct ProgressTest : ::testing::Test {
  MemoryEnv env;
  std::ostringstream out, err;
  Context context{env, out, err, {.progress = true}};
};

TEST_F(ProgressTest, ShowsShareRateAndTimeLeft) {
  ProgressBar bar(context, "verify");
  env.advance(seconds(2));
  bar.update(1'000'000'000, 4'000'000'000);
  EXPECT_EQ(err.str(),
            "\r\033[Kverify   25 %  1.00 GB of 4.00 GB  500.00 MB/s  0:06 left");
}

TEST_F(ProgressTest, DrawsAtMostTenTimesASecond) {
  ProgressBar bar(context, "x");
  for (int i = 0; i < 1000; ++i) {
    env.advance(milliseconds(1));
    bar.update(i, 1000);
  }
  EXPECT_EQ(std::ranges::count(err.str(), '\r'), 10);
}

TEST_F(ProgressTest, IsSilentWhereNobodyLooksAndWhereNothingIsToDo) {
  context.terminal = {};
  { ProgressBar(context, "x").update(1, 2); }
  EXPECT_EQ(err.str(), "");
  context.terminal.progress = true;
  { ProgressBar bar(context, "x"); }
  EXPECT_EQ(err.str(), "");
  ProgressBar(context, "x").update(0, 0);
  EXPECT_EQ(err.str(), "\r\033[Kx  100 %  0 B of 0 B\r\033[K");
}

}  // namespace
}  // namespace holdfast

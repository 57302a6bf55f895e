#include "holdfast/base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <semaphore>
#include <system_error>
#include <thread>

namespace holdfast {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnce) {
  std::vector<std::atomic<int>> runs(1000);
  ThreadPool pool({.threads = 4, .queue = 8});
  for (auto& run : runs) pool.submit([&run] { ++run; });
  pool.wait_idle();
  for (const auto& run : runs) EXPECT_EQ(run, 1);
}

TEST(ThreadPoolTest, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  ThreadPool pool({.threads = 1, .queue = 4});
  for (int i = 0; i < 100; ++i) pool.submit([&order, i] { order.push_back(i); });
  pool.wait_idle();
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(ThreadPoolTest, SubmitWaitsForRoom) {
  std::atomic<int> submitted = 0, finished = 0, most = 0;
  ThreadPool pool({.threads = 1, .queue = 1});
  for (int i = 0; i < 1000; ++i) {
    pool.submit([&] {
      most = std::max(most.load(), submitted - finished);
      ++finished;
    });
    ++submitted;
  }
  pool.wait_idle();
  EXPECT_EQ(finished, 1000);
  EXPECT_LE(most, 2);  // one task runs and one waits
}

TEST(ThreadPoolTest, TasksRunAtTheSameTime) {
  std::latch all(3);  // opens only if three tasks run at the same time
  ThreadPool pool({.threads = 3, .queue = 3});
  for (int i = 0; i < 3; ++i) pool.submit([&] { all.arrive_and_wait(); });
  pool.wait_idle();
  EXPECT_TRUE(all.try_wait());
}

TEST(ThreadPoolTest, DestructionRunsWhatWasSubmitted) {
  std::atomic<int> ran = 0;
  {
    ThreadPool pool({.threads = 2, .queue = 64});
    for (int i = 0; i < 50; ++i) pool.submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST(ThreadPoolTest, WhatATaskHoldsIsGoneWhenThePoolIsIdle) {
  ThreadPool pool({.threads = 1, .queue = 1});
  auto held = std::make_shared<int>(1);
  pool.submit([copy = held] {});
  pool.wait_idle();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(ThreadPoolTest, ThreadsThatLingerTakeTheNextTasksAndEndWithThePool) {
  ThreadPool pool({.threads = 3, .queue = 8, .linger = std::chrono::hours(1)});
  for (int tasks = 1; tasks <= 3; ++tasks) {  // more of them than threads that linger
    for (int round = 0; round < 100; ++round) {
      std::latch all(tasks);
      for (int i = 0; i < tasks; ++i) pool.submit([&] { all.arrive_and_wait(); });
      pool.wait_idle();
      EXPECT_TRUE(all.try_wait());
    }
  }
}

TEST(ThreadPoolTest, ThreadsThatHaveLingeredAreWokenForTheNextTasks) {
  std::atomic<int> ran = 0;
  ThreadPool pool({.threads = 2, .queue = 8, .linger = std::chrono::nanoseconds(1)});
  for (int i = 0; i < 1000; ++i) {
    pool.submit([&] { ++ran; });
    pool.wait_idle();
    EXPECT_EQ(ran, i + 1);
  }
}

TEST(ThreadPoolDeathTest, ATaskThatThrowsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool({.threads = 1, .queue = 1});
        pool.submit([] { throw 1; });
        pool.wait_idle();
      },
      "");
}

// Starts the given number of threads and refuses more, as a system at its limit does.
ThreadPool::Starter at_most(int count) {
  return [count](ThreadPool::Task task) mutable {
    if (count-- == 0) {
      throw std::system_error(
          std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    return std::jthread(std::move(task));
  };
}

TEST(ThreadPoolTest, GoesOnWithTheThreadsThatCouldBeStarted) {
  std::atomic<int> ran = 0;
  {
    ThreadPool pool({.threads = 8, .queue = 4}, at_most(2));
    EXPECT_EQ(pool.threads(), 2);
    for (int i = 0; i < 20; ++i) pool.submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 20);
}

TEST(ThreadPoolDeathTest, WithoutAnyThreadItSaysSo) {
  EXPECT_DEATH(ThreadPool({.threads = 2, .queue = 4}, at_most(0)),
               "no thread can be started: ");
}

}  // namespace
}  // namespace holdfast

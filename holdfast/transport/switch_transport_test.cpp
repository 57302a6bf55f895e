// Tests what happens around replace(); transport_conformance_test.cpp has the rest.
#include "holdfast/transport/switch_transport.h"

#include <gtest/gtest.h>

#include <atomic>

#include "holdfast/env/memory_env.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

class SwitchTransportTest : public ::testing::Test {
 protected:
  std::shared_ptr<Transport> in(const std::shared_ptr<LocalNetwork>& network,
                                int rank) {
    return {network, &network->endpoint(rank)};
  }

  MemoryEnv env_;
  std::shared_ptr<LocalNetwork> first_ = std::make_shared<LocalNetwork>(env_, 2);
  std::shared_ptr<LocalNetwork> second_ = std::make_shared<LocalNetwork>(env_, 2);
  SwitchTransport switch_{in(first_, 0)};
};

TEST_F(SwitchTransportTest, LaterCallsGoToTheNewTransport) {
  first_->kill(1);
  EXPECT_ERROR(switch_.recv(1, 0, kNoDeadline), ErrorCode::kUnavailable);
  switch_.replace(in(second_, 0));
  ASSERT_OK(second_->endpoint(1).send(0, 0, bytes_of("new"), kNoDeadline));
  EXPECT_EQ(text_of(*switch_.recv(1, 0, kNoDeadline)), "new");
}

TEST_F(SwitchTransportTest, ACallThatWaitsStaysInTheOldTransport) {
  const Instant deadline = env_.now() + 1h;
  std::atomic<bool> begun = false;
  std::jthread waiting([&] {
    begun = true;
    EXPECT_ERROR(switch_.recv(1, 0, deadline), ErrorCode::kTimeout);
  });
  while (!begun) std::this_thread::yield();
  std::this_thread::sleep_for(2ms);  // most often the thread waits by now
  switch_.replace(in(second_, 0));
  first_.reset();  // the waiting call keeps it alive
  env_.advance(1h);
}

TEST_F(SwitchTransportTest, TheLateWatchWorksInEachTransport) {
  for (const auto& network : {first_, second_}) {
    switch_.replace(in(network, 0));
    std::vector<int> named;
    switch_.set_late_watch({.tell = [&](const std::vector<int>& missing) {
      named = missing;
      network->kill(0);  // ends the call
    }});
    EXPECT_ERROR(switch_.barrier(env_.now() + 1h), ErrorCode::kUnavailable);
    EXPECT_EQ(named, std::vector{1});
  }
}

}  // namespace
}  // namespace holdfast

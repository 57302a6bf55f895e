// Tests what only LocalNetwork does; transport_conformance_test.cpp has the rest.
#include "holdfast/transport/local_transport.h"

#include <gtest/gtest.h>

#include <atomic>

#include "holdfast/env/memory_env.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

class LocalTransportTest : public ::testing::Test {
 protected:
  Instant past() { return env_.now(); }
  Transport& at(int rank) { return network_.endpoint(rank); }

  MemoryEnv env_;
  LocalNetwork network_{env_, 3, 4};
};

TEST_F(LocalTransportTest, DroppedMessagesAreLostInSilence) {
  network_.drop(0, 1, 2);
  for (const char* text : {"a", "b", "c"}) {
    ASSERT_OK(at(0).send(1, 0, bytes_of(text), past()));
  }
  ASSERT_OK(at(0).send(2, 0, bytes_of("d"), past()));
  EXPECT_EQ(text_of(*at(1).recv(0, 0, past())), "c");
  EXPECT_EQ(text_of(*at(2).recv(0, 0, past())), "d");
}

TEST_F(LocalTransportTest, ALostMessageOfACollectiveIsATimeoutForItsReceiverAlone) {
  network_.drop(0, 1);
  std::atomic<int> waiting = 2;
  const Instant deadline = env_.now() + 1h;
  on_ranks(3, [&](int rank) {
    Transport& transport = at(rank);
    const Result<void> passed = transport.barrier(deadline);
    if (rank == 1) {
      EXPECT_ERROR(passed, ErrorCode::kTimeout);
      return;
    }
    EXPECT_OK(passed);
    if (--waiting == 0) env_.advance(1h);
  });
}

}  // namespace
}  // namespace holdfast

// What can be tested without mpirun. tests/mpi/mpi_ranks.cpp has the rest.
#include "holdfast/mpi/mpi_transport.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"

namespace holdfast {
namespace {

TEST(MpiTransportTest, AProgramThatHasNotInitialisedMpiIsRefused) {
  MemoryEnv env;
  const auto started = start_mpi_transport(env, MPI_COMM_WORLD, kNoDeadline);
  EXPECT_ERROR(started, ErrorCode::kInvalid);
  EXPECT_EQ(message_of(started),
            "mpi: is not initialised; expected a call of MPI_Init_thread before");
}

}  // namespace
}  // namespace holdfast

// A Transport by MPI, between the processes of a communicator. It is an optional component:
//
//   find_package(holdfast REQUIRED COMPONENTS mpi)
//   target_link_libraries(heat PRIVATE holdfast::holdfast holdfast::mpi)
//
// The program initialises MPI before it starts the transport, and finalises MPI after the
// transport is destroyed. One thread of the transport makes all its MPI calls. So the
// program needs MPI_THREAD_MULTIPLE, or MPI_THREAD_SERIALIZED if it makes no MPI calls
// of its own while the transport exists.
//
// In addition to what transport.h says:
//
//   - A rank that destroys its transport tells the others, which then find it gone. A
//     rank that dies tells nobody, and MPI cannot tell either: its runtime usually ends
//     the whole job. Where it does not, calls that wait for the dead rank end at their
//     deadlines with kTimeout. Recovery after a death therefore needs TcpTransport.
//   - MPI cannot wait until a deadline. The thread looks for messages again and again,
//     and after a while without any, about once in a millisecond.
//   - All bytes are copied before they are sent, because MPI does not give memory back
//     when a deadline passes.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "holdfast/env/env.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

struct MpiOptions {
  // How many messages, and how many bytes, may be on their way to one rank with one
  // tag before send() waits. A longer message may be on its way alone. The same on all
  // ranks.
  size_t queue = 1024;
  int64_t queue_bytes = kQueueBytes;
  // The longest message. The same on all ranks, and below 2^31 - 64.
  int64_t most_bytes = int64_t{256} << 20;
};

// All processes of `communicator` call it together, one thread of each; their ranks are
// those of the communicator. The transport sends its messages through a duplicate, so
// they do not meet those that the program sends, and the program may free its own
// communicator afterwards.
//
// kInvalid if MPI is not initialised or has another level of threads, or if this process
// has no rank in the communicator. kTimeout if not all processes have come in time, also
// for the one that comes late; after that all may call it again with this communicator.
//
// Deadlines are times of `env`, which must outlive the transport. The destructor first
// sends all messages that still wait, and waits for the other ranks to leave, for at most
// about a second.
Result<std::unique_ptr<Transport>> start_mpi_transport(Env& env, MPI_Comm communicator,
                                                       Instant deadline,
                                                       const MpiOptions& options = {});

}  // namespace holdfast

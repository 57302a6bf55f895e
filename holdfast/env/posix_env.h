// The Env of the machine: its files, its clock and its random numbers.
#pragma once

#include <memory>

#include "holdfast/env/env.h"

namespace holdfast {

struct PosixOptions {
  // How many threads run submitted transfers. They start with the first submit.
  int io_threads = 8;
  // How many transfers may wait for a thread before a submit blocks. With io_uring: how
  // many transfers of one file may be in flight.
  int in_flight = 64;
  // Use io_uring where the machine has it; if false, always use the threads.
  bool uring = true;
};

// Submitted transfers of a file go through a ring of io_uring, which is created at the
// file's first submit. Where no ring can be created (a build without liburing, an old
// kernel, a container that forbids it, too many open files), they run on a few threads
// that all files share. Both give the same results. One Env for a process is enough.
std::unique_ptr<Env> make_posix_env(PosixOptions options = {});

}  // namespace holdfast

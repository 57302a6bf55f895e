// The Env of the machine.
#pragma once

#include <memory>

#include "holdfast/env/env.h"

namespace holdfast {

struct PosixOptions {
  int io_threads = 8;  // transfers that run at once; started with the first submit
  int in_flight = 64;  // transfers that may wait before submit blocks; with io_uring
                       // that may be in flight of one file
  bool uring = true;   // io_uring where it is to be had; false: always the threads
};

// Submitted transfers of a file go through a ring of io_uring, made at the file's first
// submit. Where there is none to be had (built without liburing, an old kernel, a
// container that forbids it, too many open files) they run on a few threads that all
// files share. Both give the same results. One Env for a process is enough.
std::unique_ptr<Env> make_posix_env(PosixOptions options = {});

}  // namespace holdfast

// The Env of the machine.
#pragma once

#include <memory>

#include "holdfast/base/env.h"

namespace holdfast {

struct PosixOptions {
  int io_threads = 4;  // transfers that run at once; started with the first submit
  int in_flight = 64;  // transfers that may wait before submit blocks
};

// Submitted transfers run on a few threads of its own. One for a process is enough.
std::unique_ptr<Env> make_posix_env(PosixOptions options = {});

}  // namespace holdfast

// Who a rank is, in the layouts of a running job: the process, and the machine that it
// is on. A rank's number may change when the job is resized; its worker stays the same.
#pragma once

#include <string>

#include "holdfast/env/env.h"

namespace holdfast {

struct Worker {
  // Lasts as long as the process, and no other process has it: "node7/4242/9f86d081".
  std::string name{};
  // Equal for processes that reach each other by loopback: the boot of the machine and
  // the namespace of the network. The name of the machine where that is not known.
  std::string host{};
  // Equal for processes of one host that can open each other's memory through /proc: in
  // one namespace of process numbers. Empty if that is not known.
  std::string machine{};
};

// The worker that this process is.
Worker this_worker(Env& env);

}  // namespace holdfast

// Notices signals that ask the process to stop: SIGTERM (sent by schedulers and
// torchrun) and SIGUSR1 (sent by Slurm with --signal). The handler only sets a flag;
// the training thread reads the flag between steps.
//
// If another handler function was installed before, it is called too. The previous
// handlers are restored when the last instance is destroyed, unless other code has
// installed handlers of its own since. Several instances see the same signals. In a
// forked child the signals act as if there were no instance. Safe from all threads.
#pragma once

#include <csignal>
#include <optional>

namespace holdfast {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal since the first instance was made; nullopt if none has come.
  std::optional<int> caught() const;

  // Ends the process by a signal that was caught but not acted upon, if the current
  // action of the signal is the default one. If a handler function is installed,
  // nothing happens, because that function was called when the signal came.
  static void give_way(int signal);
};

}  // namespace holdfast

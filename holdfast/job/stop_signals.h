// Hears that the process is asked to stop: SIGTERM (schedulers, torchrun) and SIGUSR1
// (Slurm's --signal). The signal only sets a flag; who trains asks for it between steps.
//
// Handlers that were there are called too, if they are functions, and are put back when the
// last instance goes, unless somebody has put others over these. Several instances hear the
// same signals. A forked child is stopped as if nobody listened. Safe from all threads.
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

  // The first signal that came since there are instances, if any.
  std::optional<int> caught() const;

  // Lets a signal that was caught do what it would have done, for nobody has acted upon it.
  // A handler that is a function was called then, and is not called again.
  static void give_way(int signal);
};

}  // namespace holdfast

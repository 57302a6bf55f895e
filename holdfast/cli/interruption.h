// Lets a verb clean up before Ctrl-C or SIGTERM ends the program.
#pragma once

#include <csignal>

namespace holdfast {

// While an Interruption exists, SIGINT and SIGTERM only set a flag. The destructor
// restores the previous handlers. If a signal arrived in the meantime, it then raises
// that signal. At most one Interruption may exist at a time.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  bool came() const;
  // Whether a second signal came, from somebody who cannot wait for the clean-up.
  bool came_again() const;

 private:
  struct sigaction before_int_ {};
  struct sigaction before_term_ {};
};

}  // namespace holdfast

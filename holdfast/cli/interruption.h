// Lets a verb clean up before Ctrl-C or SIGTERM ends the program.
#pragma once

#include <csignal>

namespace holdfast {

// While there is one, SIGINT and SIGTERM only set a flag. When it goes, the handlers are as
// before, and a signal that came does what it would have done. One at a time.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  bool came() const;

 private:
  struct sigaction before_int_ {};
  struct sigaction before_term_ {};
};

}  // namespace holdfast

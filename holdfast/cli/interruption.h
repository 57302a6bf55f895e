// Lets a verb clean up before Ctrl-C or SIGTERM ends the program.
#pragma once

#include <csignal>

namespace holdfast {

// While such an object exists, SIGINT and SIGTERM only set a flag. The destructor
// restores the previous handlers and raises a signal that has come meanwhile again.
// There may be only one object at a time.
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

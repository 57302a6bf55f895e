// Starts a program in a process group of its own, waits for its end up to a deadline,
// and ends the whole group, so that no process which the program has started stays
// behind.
//
// The program is not started by a shell: the words of the command are its arguments. A
// process that moves to another group (setsid) leaves the Child, and is not ended with
// it. If the process that owns a Child is killed, the program goes on.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

struct ChildOptions {
  // The program and its arguments. A program without a '/' is looked for on the PATH.
  std::vector<std::string> command{};
  // Variables that are added to those of this process, or replace them.
  std::map<std::string, std::string> environment{};
  // Files that get what the program prints; they are emptied first. Both may be the
  // same file. Without a file the program prints where this process prints.
  std::optional<Path> output{};
  std::optional<Path> errors{};
};

// How a program has ended.
struct ChildEnd {
  int code = 0;    // what it exited with, if no signal has ended it
  int signal = 0;  // the signal that has ended it; 0 if it exited

  bool succeeded() const { return code == 0 && signal == 0; }
  std::string text() const;  // "exit code 1", "signal 11 (Segmentation fault)"
};

// Fails as Child::start() does if there is no such program.
Result<void> find_program(const std::string& name);

// Not thread safe. The destructor ends the group at once.
class Child {
 public:
  // The input of the program is empty. Fails with kNotFound if there is no such program,
  // and with kDenied if it may not be started.
  static Result<Child> start(const ChildOptions& options);

  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  int pid() const { return pid_; }
  // Waits at most so long for the end of the program, and then ends what is left of its
  // group. Returns nullopt if the program still runs; this may happen earlier, for
  // example because of a signal, so callers look at the clock themselves.
  std::optional<ChildEnd> wait(Duration most);
  // Asks all processes of the group to end (SIGTERM), and kills those that are still
  // there when the program has ended, or after `grace` (SIGKILL).
  ChildEnd end(Duration grace);

 private:
  explicit Child(int pid) : pid_(pid) {}

  // If the program has ended, ends the rest of its group, and stores how the program
  // has ended. Returns false if it still runs. With `block`, waits for its end first.
  bool note_end(bool block);

  int pid_ = 0;  // 0 after a move
  std::optional<ChildEnd> ended_{};
};

}  // namespace holdfast

// The command line: `holdfast VERB ...`.
//
// Every verb has --json for programs and --help with examples. Results go to `out`. An
// error is one sentence on `err`. Progress is shown on `err` too, if it is a terminal.
// With -q only errors are printed: damage that verify finds and steps that gc cannot
// remove are errors, too. With -v nothing is shortened, and `err` says how long the
// command took. `holdfast --version` prints the version. Exit codes:
//   0  the command has succeeded
//   1  the command has failed, the file is not supported, or diff has found a
//      difference
//   2  the call is wrong
//   3  damage was found
//   4  nothing was found
//
// With --json, a command that fails prints one object to `out`, whatever the verb:
//
//   {"version": 1, "error": {"code": "corrupt", "message": "model.pt: ...", "exit": 3}}
//
// `code` is the name of the ErrorCode (base/result.h). ls and verify continue with the
// next path after one has failed, so they print a list "errors" in their own object
// instead.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kWrongCall = 2,
  kDamage = 3,
  kNothing = 4,
};

// What `out` and `err` are connected to. By default neither is a terminal.
struct Terminal {
  bool progress = false;  // err is a terminal
  bool colour = false;    // out is a terminal, and the user has not turned colours off
  size_t width = 0;       // the columns of out if it is a terminal, otherwise 0
};

// Runs one command and returns the exit code. `arguments` do not contain the program's
// name.
int run_cli(std::vector<std::string> arguments, Env& env, std::ostream& out,
            std::ostream& err, Terminal terminal = {});

}  // namespace holdfast

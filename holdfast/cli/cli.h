// The command line: `holdfast VERB ...`.
//
// Every verb has --json for programs and --help with an example. Results go to `out`;
// what went wrong is one sentence on `err`, where progress is shown too if it is a
// terminal. Exit codes: 0 done, 1 failed (or, of diff, different; or the file is of a kind
// that is not supported), 2 wrong call, 3 damage found, 4 nothing found. `holdfast --version` says which one it is.
//
// With --json, a command that fails prints one object to `out`, whatever the verb:
//
//   {"error": {"code": "corrupt", "message": "model.pt: ...", "exit": 3}}
//
// `code` is the word of ErrorCode (base/result.h). ls and verify, which go on to the next
// path after one that failed, have a list "errors" in their own object instead.
#pragma once

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

// What the streams lead to. Nobody looks, unless the program says so.
struct Terminal {
  bool progress = false;  // err is a terminal
  bool colour = false;    // out is one, and its owner does not mind
};

// Runs one command. `arguments` are without the program's name.
int run_cli(std::vector<std::string> arguments, Env& env, std::ostream& out,
            std::ostream& err, Terminal terminal = {});

}  // namespace holdfast

// The command line: `holdfast VERB ...`.
//
// Every verb has --json for programs and --help with an example. Results go to `out`;
// what went wrong is one sentence on `err`. Exit codes: 0 done, 1 failed, 2 wrong call,
// 3 damage found, 4 nothing found.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "holdfast/base/env.h"

namespace holdfast {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kWrongCall = 2,
  kDamage = 3,
  kNothing = 4,
};

// Runs one command. `arguments` are without the program's name.
int run_cli(std::vector<std::string> arguments, Env& env, std::ostream& out,
            std::ostream& err);

}  // namespace holdfast

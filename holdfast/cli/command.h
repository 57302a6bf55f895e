// What a verb is made of: its options on CLI11's subcommand, and what it does.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <iosfwd>

#include "holdfast/base/env.h"
#include "holdfast/base/result.h"

namespace holdfast {

struct Context {
  Env& env;
  std::ostream& out;
};

// Run if its verb was given.
using Command = std::function<Result<void>(const Context&)>;

// Each adds one verb with its options and returns what it does.
Command add_plan_command(CLI::App& app);

}  // namespace holdfast

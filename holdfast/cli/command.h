// What a verb is: a name, options that fill variables, and what it does then.
//
// Verbs describe their options as data and never see the library that parses them: only
// cli.cpp does, which alone takes its half a minute to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "holdfast/cli/cli.h"
#include "holdfast/env/env.h"
#include "holdfast/inspect/open_any.h"

namespace holdfast {

// Fills the variable if it is given. A bool is a flag; a vector takes one or more.
struct Option {
  std::string name;  // "--hosts"; without dashes, "RUN", it goes by position
  std::string help;
  std::variant<std::string*, bool*, int64_t*, std::optional<int64_t>*,
               std::vector<std::string>*>
      into;
  bool required = false;
};

struct Context {
  Env& env;
  std::ostream& out;
  std::ostream& err;
  Terminal terminal{};
};

// Of a verb that takes several paths, one that could not be looked at.
struct FailedPath {
  std::string path;
  Error error;
};

// Tells each on err. Returns kDamage if one of them is damaged, else the code that the
// first stands for; kDone if there are none.
ExitCode tell_failed(const Context& context, std::span<const FailedPath> failed);

// Tells on err which newer steps of a run were passed over, and why.
void tell_skipped(const Context& context, const Found& found);

struct Verb {
  std::string name;
  std::string summary;  // one line
  std::string footer;   // examples, shown by --help
  std::vector<Option> options;
  // An error decides the exit code by its code, and is told on err.
  std::function<Result<ExitCode>(const Context&)> run;
};

Verb convert_verb();
Verb diff_verb();
Verb gc_verb();
Verb interval_verb();
Verb ls_verb();
Verb pin_verb();
Verb plan_verb();
Verb show_verb();
Verb simulate_verb();
Verb unpin_verb();
Verb verify_verb();

}  // namespace holdfast

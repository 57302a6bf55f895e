// What a verb is: a name, options that fill variables, and what it does then.
//
// Verbs describe their options as data and never see the library that parses them: only
// cli.cpp does, which alone takes its half a minute to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <variant>
#include <vector>

#include "holdfast/base/env.h"

namespace holdfast {

// Fills the variable if it is given. A bool is a flag.
struct Option {
  std::string name;  // "--hosts"
  std::string help;
  std::variant<std::string*, bool*, int64_t*> into;
  bool required = false;
};

struct Context {
  Env& env;
  std::ostream& out;
};

struct Verb {
  std::string name;
  std::string summary;  // one line
  std::string footer;   // examples, shown by --help
  std::vector<Option> options;
  std::function<Result<void>(const Context&)> run;
};

Verb plan_verb();

}  // namespace holdfast

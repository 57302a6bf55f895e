// For tests: runs a command and keeps what it said.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "holdfast/cli/cli.h"

namespace holdfast::testing {

struct Ran {
  int code;
  std::string out, err;
};

inline Ran run_words(Env& env, std::vector<std::string> words, Terminal terminal = {}) {
  std::ostringstream out, err;
  const int code = run_cli(std::move(words), env, out, err, terminal);
  return {code, out.str(), err.str()};
}

// Words are parted by spaces.
inline Ran run_line(Env& env, const std::string& line, Terminal terminal = {}) {
  std::istringstream words(line);
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) arguments.push_back(word);
  return run_words(env, std::move(arguments), terminal);
}

}  // namespace holdfast::testing

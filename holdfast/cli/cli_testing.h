// For tests: runs a command and returns what it has printed.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "holdfast/cli/cli.h"
#include "holdfast/env/memory_env.h"

namespace holdfast::tests {

struct Ran {
  int code;
  std::string out, err;
};

inline Ran run_words(Env& env, std::vector<std::string> words, Terminal terminal = {}) {
  std::ostringstream out, err;
  const int code = run_cli(std::move(words), env, out, err, terminal);
  return {code, out.str(), err.str()};
}

// The arguments are separated by spaces.
inline Ran run_line(Env& env, const std::string& line, Terminal terminal = {}) {
  std::istringstream words(line);
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) arguments.push_back(word);
  return run_words(env, std::move(arguments), terminal);
}

// Runs the command line with files in memory.
class CommandTest : public ::testing::Test {
 protected:
  Ran run(const std::string& line) { return run_line(env_, line); }

  void expect_wrong_call(const std::string& line, const std::string& sentence) {
    const Ran ran = run(line);
    EXPECT_EQ(ran.code, 2) << line;
    EXPECT_EQ(ran.err, "holdfast: " + sentence + "\n") << line;
    EXPECT_EQ(ran.out, "") << line;
  }

  void write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(env_.write_file(path, std::as_bytes(std::span(text))).ok());
  }

  MemoryEnv env_;
};

}  // namespace holdfast::tests

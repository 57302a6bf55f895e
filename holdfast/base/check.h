// HOLDFAST_CHECK states a contract between our own functions. A broken contract is a
// bug: the process prints the message and aborts, in release builds too, because going
// on would risk the user's state.
#pragma once

#include <fmt/core.h>

#include <string>

namespace holdfast {

[[noreturn]] void fail_check(const char* file, int line, const char* condition,
                             const std::string& message);

}  // namespace holdfast

#define HOLDFAST_CHECK(condition, ...)                       \
  do {                                                       \
    if (!(condition)) [[unlikely]] {                         \
      ::holdfast::fail_check(__FILE__, __LINE__, #condition, \
                             ::fmt::format(__VA_ARGS__));    \
    }                                                        \
  } while (false)

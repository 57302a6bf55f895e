// The program `holdfast`. All of its code is behind cli.h, so that tests can call it.
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <new>
#include <string>
#include <string_view>

#include "holdfast/cli/cli.h"
#include "holdfast/cli/python_module.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/remote/s3_store.h"
#include "holdfast/store/object_store_env.h"

namespace {

// The number of columns of the terminal that gets the results; 0 if it is no terminal.
size_t columns() {
  constexpr size_t kUsual = 80;
  if (isatty(STDOUT_FILENO) != 1) return 0;
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsual;
}

// Colours are off if NO_COLOR is set and not empty (https://no-color.org).
holdfast::Terminal terminal() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  const bool plain = (no_colour != nullptr && *no_colour != '\0') || kind == nullptr ||
                     std::string_view(kind) == "dumb";
  return {.progress = isatty(STDERR_FILENO) == 1,
          .colour = !plain && isatty(STDOUT_FILENO) == 1,
          .width = columns()};
}

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    // These verbs are programs of Python, with options of their own.
    const std::string verb = argc > 1 ? argv[1] : "";
    if (verb == "launch" || verb == "rehearse" || verb == "resize" || verb == "bench") {
      const holdfast::Error why =
          holdfast::become_python_verb(verb, {argv + 2, argv + argc});
      std::cerr << "holdfast: " << why.message() << '\n';
      return static_cast<int>(holdfast::ExitCode::kFailed);
    }
    const auto machine = holdfast::make_posix_env();
    holdfast::ObjectStoreEnv env(*machine, [&](const std::string& bucket) {
      return holdfast::open_s3_from(*machine, variable, bucket);
    });
    const int code = holdfast::run_cli({argv + 1, argv + argc}, env, std::cout,
                                       std::cerr, terminal());
    if (std::cout.flush()) return code;
    std::cerr << "holdfast: the output could not be written\n";
    return static_cast<int>(holdfast::ExitCode::kFailed);
  } catch (const std::bad_alloc&) {
    std::cerr << "holdfast: out of memory\n";
    return static_cast<int>(holdfast::ExitCode::kFailed);
  }
}

// The program `holdfast`: everything is in cli.h, so that tests can call it.
#include <iostream>
#include <new>

#include "holdfast/base/posix_env.h"
#include "holdfast/cli/cli.h"

int main(int argc, char** argv) {
  try {
    const auto env = holdfast::make_posix_env();
    return holdfast::run_cli({argv + 1, argv + argc}, *env, std::cout, std::cerr);
  } catch (const std::bad_alloc&) {
    std::cerr << "holdfast: out of memory\n";
    return static_cast<int>(holdfast::ExitCode::kFailed);
  }
}

// `holdfast launch`: starts the ranks of a training job. The launcher is a program of
// Python with options of its own, and the program `holdfast` becomes it before it looks
// at its arguments (main.cpp). Here the verb is only described.
#include "holdfast/cli/command.h"
#include "holdfast/cli/python_module.h"

namespace holdfast {
namespace {

constexpr const char* kLaunchExample = R"(
Examples:
  holdfast launch -n 4 train.py --batch 32
  srun --no-kill --ntasks-per-node=1 holdfast launch -n 8 train.py)";

}  // namespace

Verb launch_verb() {
  return {.name = "launch",
          .summary = "Start the ranks of a training, and replace those that die",
          .footer = kLaunchExample,
          .options = {},
          .run = [](const Context&) -> Result<ExitCode> {
            return become_launcher({"--help"});
          }};
}

}  // namespace holdfast

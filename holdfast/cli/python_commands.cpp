// The verbs about trainings that run, `holdfast launch`, `resize` and `rehearse`, and
// `holdfast bench`, which compares with libraries of Python. They
// are programs of Python with options of their own, and the program `holdfast` becomes
// them before it looks at its arguments (main.cpp). Here the verbs are only described.
#include "holdfast/cli/command.h"
#include "holdfast/cli/python_module.h"

namespace holdfast {
namespace {

constexpr const char* kLaunchExample = R"(
Examples:
  holdfast launch -n 4 train.py --batch 32
  srun --no-kill --ntasks-per-node=1 holdfast launch -n 8 train.py)";

constexpr const char* kResizeExample = R"(
Examples:
  holdfast resize runs/gpt
  holdfast resize runs/gpt --to tp=1,pp=2,dp=2)";

constexpr const char* kRehearseExample = R"(
Examples:
  holdfast rehearse -- python train.py --epochs 3
  holdfast rehearse --steps 50 --at 8,31 -- torchrun --nproc-per-node=2 train.py)";

constexpr const char* kBenchExample = R"(
Examples:
  holdfast bench /scratch
  holdfast bench /scratch --size 4000 --mtbf 2h --json)";

Verb python_verb(std::string name, std::string summary, const char* examples) {
  return {.name = name,
          .summary = std::move(summary),
          .footer = examples,
          .options = {},
          .run = [name](const Context&) -> Result<ExitCode> {
            return become_python_verb(name, {"--help"});
          }};
}

}  // namespace

Verb launch_verb() {
  return python_verb("launch", "Start the ranks of a training, and replace those that die",
                     kLaunchExample);
}

Verb resize_verb() {
  return python_verb("resize", "Change TP x PP x DP of a training that runs",
                     kResizeExample);
}

Verb rehearse_verb() {
  return python_verb("rehearse", "Kill a training, and say whether it resumes exactly",
                     kRehearseExample);
}

Verb bench_verb() {
  return python_verb("bench", "Measure saves and loads in a folder, beside other libraries",
                     kBenchExample);
}

}  // namespace holdfast

// `holdfast reshard`: cuts a checkpoint again for another parallel configuration.
#include <fmt/ostream.h>

#include <chrono>
#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/interruption.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

constexpr const char* kReshardExample = R"(
Examples:
  holdfast reshard runs/gpt@400 runs/gpt-tp2 --to tp=2,pp=4
  holdfast reshard llama/ runs/llama --to tp=8 --rules hf-llama
  holdfast reshard runs/gpt whole/ --to whole --format safetensors
  holdfast reshard checkpoints/iter_0000400 out --to tp=2,pp=4
  holdfast reshard runs/gpt --to tp=4 --plan-only --json

SRC is a file or folder of a known format, the folder of a step, a run directory,
RUN@STEP, or a folder of Megatron-LM. DST must not exist. In the native format it is a new
run with one step, which has the names, shapes, values and objects of the source. A
configuration is a list of KEY=VALUE separated by commas, as for holdfast plan; "whole"
merges everything.

Rules say how tensors are cut, by their names: a built-in set (hf-gpt2, hf-llama and those of
other families, megatron-gpt), as-cut (along the axes along which the source is cut) or a
JSON file (docs/reshard.md). Without --rules the first set that fits is taken. If the command is interrupted, the same
command continues it.)";

struct ReshardArguments {
  std::string from, to;
  ReshardOptions options;
  bool plan_only = false;
};

std::string files_text(int64_t files) {
  return files == 1 ? "1 file" : human_count(files) + " files";
}

void print_plan(const Context& context, const ReshardPlan& plan) {
  std::string before = plan.step ? plan.step->manifest.parallel : "";
  if (plan.megatron) {
    before = fmt::format("tp={},pp={}", plan.megatron->tp, plan.megatron->pp);
  }
  const std::string after = plan.whole ? "whole" : to_string(plan.parallel);
  fmt::print(context.out, "{}{}{}  {}  {}  ->  {}  {}  {}{}\n", plan.kind(),
             before.empty() ? "" : "  ", printable(before),
             files_text(std::ssize(plan.contents->sources)),
             human_bytes(plan.contents->collection.bytes()), after, plan.format,
             plan.format == "safetensors-folder" ? "whole tensors"
                                                 : files_text(plan.target_files()),
             plan.rules.empty() ? "" : "  by the rules " + printable(plan.rules));
  const Figures& figures = plan.figures;
  fmt::print(context.out, "reads {}{}\n", human_bytes(figures.moved),
             figures.moved == figures.moved_bound
                 ? " (the bound)"
                 : fmt::format(" (the bound is {}; what several files have is read for "
                               "each of them)",
                               human_bytes(figures.moved_bound)));
  for (const std::string& note : plan.notes) {
    fmt::print(context.out, "{}\n", printable(note));
  }
}

Result<ExitCode> reshard_path(const Context& context,
                              const ReshardArguments& arguments) {
  if (arguments.to.empty() && !arguments.plan_only) {
    return invalid("reshard: DST is missing; expected a path, or --plan-only");
  }
  ReshardOptions options = arguments.options;
  ProgressBar planning(context, "plan the target " + options.to, ProgressUnit::kTrials);
  options.planning = planning.callback();
  const ReshardPlan plan =
      HOLDFAST_TRY(plan_reshard(context.env, arguments.from, options));
  planning.clear();
  tell_skipped(context, plan.from);
  if (!context.json) print_plan(context, plan);
  std::optional<Resharded> done;
  const Instant began = context.env.now();
  if (!arguments.plan_only) {
    ProgressBar bar(context, "reshard");
    Interruption interruption;
    options.reading = {.progress = bar.callback(),
                       .stop = [&] { return interruption.came(); }};
    done = HOLDFAST_TRY(reshard(context.env, plan, arguments.to, options));
  }
  const std::chrono::duration<double> took = context.env.now() - began;
  if (context.json) {
    print_json(context.out, plan, arguments.to, done);
    return ExitCode::kDone;
  }
  if (!done) return ExitCode::kDone;
  if (done->kept > 0) {
    fmt::print(context.out, "{} of {} were finished by an earlier call; {} moved now\n",
               human_count(done->kept), files_text(done->files),
               human_bytes(done->moved));
  }
  fmt::print(context.out, "{} seals equal; {}\n", human_count(done->seals),
             human_seconds(took.count()));
  return ExitCode::kDone;
}

}  // namespace

Verb reshard_verb() {
  auto arguments = std::make_shared<ReshardArguments>();  // shared with `run` below
  ReshardArguments& a = *arguments;
  std::vector<std::string> rules = rule_set_names();
  rules.emplace_back("as-cut");
  return {.name = "reshard",
          .summary = "Cut a checkpoint again for another parallel configuration",
          .footer = kReshardExample,
          .options = {{"SRC", "A file, a step, a run, or RUN@STEP", &a.from, true},
                      {"DST", "The new run or folder", &a.to},
                      {"--to", "The configuration, such as tp=2,pp=4, or whole",
                       &a.options.to, true},
                      {"--rules", "How tensors are cut: a built-in set or a JSON file",
                       &a.options.rules, false, rules},
                      {"--format",
                       "The format of DST: native, dcp, megatron or safetensors",
                       &a.options.format,
                       false,
                       {"native", "dcp", "megatron", "safetensors"}},
                      {"--vocabulary",
                       "The words of a checkpoint of Megatron, without pad rows",
                       &a.options.vocabulary},
                      {"--plan-only", "Only say what would be read and written",
                       &a.plan_only}},
          .run = [arguments](const Context& c) { return reshard_path(c, *arguments); }};
}

}  // namespace holdfast

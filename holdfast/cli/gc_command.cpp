// `holdfast gc`: removes the steps that no rule keeps.
#include <fmt/ostream.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

constexpr const char* kGcExample = R"(
Examples:
  holdfast gc runs/gpt --keep-last 3 --dry-run
  holdfast gc runs/gpt --keep-last 3 --keep-every 1000
  holdfast gc runs/gpt --keep-best 2 --metric loss

A step is kept if any rule keeps it, if it is pinned (holdfast pin), or if it is the
newest whole step. Nobody knows how good a step without the metric is, so --keep-best 2
also keeps the newest 2 steps without it. What crashed saves have left is removed too,
and what jobs have left in the memory of this host (handover) if it is not needed any
more: if a newer step is on disk, or if the run or the boot of the host is gone.
gc refuses a run that a live job writes to, and a metric that no step has.)";

struct GcArguments {
  std::string run;
  std::optional<int64_t> last, every, best;
  std::string metric;
  std::string memory{kSharedMemory};
  bool max = false;
  bool dry_run = false;
};

Result<int64_t> at_least_one(const char* name, const std::optional<int64_t>& number,
                             int64_t otherwise) {
  if (!number) return otherwise;
  if (*number < 1) return invalid("{}: {}; expected 1 or more", name, *number);
  return *number;
}

Result<Keep> keep_of(const GcArguments& arguments) {
  if (!arguments.last && !arguments.every && !arguments.best) {
    return invalid("gc: no rule; expected --keep-last, --keep-every or --keep-best");
  }
  if (arguments.best.has_value() == arguments.metric.empty()) {
    return invalid(
        "gc: --keep-best and --metric go together; expected both or neither");
  }
  if (arguments.max && !arguments.best)
    return invalid("gc: --max goes with --keep-best; expected both");
  return Keep{.last = HOLDFAST_TRY(at_least_one("--keep-last", arguments.last, 1)),
              .every = HOLDFAST_TRY(at_least_one("--keep-every", arguments.every, 0)),
              .best = HOLDFAST_TRY(at_least_one("--keep-best", arguments.best, 0)),
              .metric = arguments.metric,
              .order = arguments.max ? Best::kMax : Best::kMin};
}

void print_not_removed(const Context& context, const GcResult& done) {
  for (const std::string& words : done.failed) {
    fmt::print(context.out, "not removed: {}\n", printable(words));
  }
}

void print_collected(const Context& context, const GcResult& done, bool dry_run) {
  const char* would = dry_run ? "would be " : "";
  int64_t bytes = 0;
  for (const auto& [name, size] : done.removed) {
    fmt::print(context.out, "{}removed: {}, {}\n", would, name.text(),
               human_bytes(size));
    bytes += size;
  }
  for (const std::string& name : done.swept) {
    fmt::print(context.out, "{}removed: {}, left by a crash\n", would, name);
  }
  for (const std::string& name : done.memory) {
    fmt::print(context.out, "{}removed: {}, left in memory\n", would, printable(name));
  }
  print_not_removed(context, done);
  if (context.verbose) {
    for (const StepName& name : done.kept) {
      fmt::print(context.out, "stays: {}\n", name.text());
    }
  }
  if (done.in_use_by) {
    fmt::print(context.out, "gc would be refused: in use by {}\n",
               printable(*done.in_use_by));
  }
  fmt::print(context.out, "{} {}, {}, {}removed; {} stay\n", done.removed.size(),
             done.removed.size() == 1 ? "step" : "steps", human_bytes(bytes), would,
             done.kept.size());
}

Result<ExitCode> gc(const Context& context, const GcArguments& arguments) {
  const Keep keep = HOLDFAST_TRY(keep_of(arguments));
  const GcResult done = HOLDFAST_TRY(
      collect_garbage(context.env, arguments.run, keep,
                      {.dry_run = arguments.dry_run, .memory = arguments.memory}));
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) {
      field("run", arguments.run);
      field("dry_run", arguments.dry_run);
      put_members(field, done);
    });
  } else if (context.quiet) {
    print_not_removed(context, done);
  } else {
    print_collected(context, done, arguments.dry_run);
  }
  return done.failed.empty() ? ExitCode::kDone : ExitCode::kFailed;
}

}  // namespace

Verb gc_verb() {
  auto arguments = std::make_shared<GcArguments>();  // shared with `run` below
  GcArguments& a = *arguments;
  return {
      .name = "gc",
      .summary = "Remove the steps that no rule keeps",
      .footer = kGcExample,
      .options = {{"RUN", "The run directory", &a.run, true},
                  {"--keep-last", "Keep the newest N steps", &a.last},
                  {"--keep-every", "Keep steps whose number is a multiple of N",
                   &a.every},
                  {"--keep-best", "Keep the N steps with the best --metric", &a.best},
                  {"--metric", "Name of the metric, such as loss", &a.metric},
                  {"--max", "The greatest metric is the best, instead of the least",
                   &a.max},
                  {"--memory", "Where jobs have left their state (handover=)", &a.memory},
                  {"--dry-run", "Only print what would be removed", &a.dry_run}},
      .run = [arguments](const Context& c) { return gc(c, *arguments); },
      .finds_faults = true};
}

}  // namespace holdfast

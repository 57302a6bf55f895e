// `holdfast ls`: lists runs and their steps.
#include <fmt/ostream.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

constexpr const char* kLsExample = R"(
Examples:
  holdfast ls runs/gpt          the steps of a run, newest first
  holdfast ls runs              all runs in a folder
  holdfast ls runs/gpt --json
  holdfast ls s3://bucket/gpt   a run in an object store; the keys are in
                                AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the server
                                is in AWS_ENDPOINT_URL

Checks only names, sizes and small files; holdfast verify reads every byte.)";

struct LsArguments {
  std::vector<std::string> paths{"."};
  bool json = false;
};

std::string metrics_text(const Manifest& manifest) {
  std::string text;
  for (const auto& [name, value] : manifest.metrics) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", printable(name),
                        human_number(value));
  }
  return text.empty() ? "-" : text;
}

std::string state_text(const StepView& view, bool colour) {
  std::string text = view.why_not  ? paint("damaged", Colour::kRed, colour)
                     : view.newest ? paint("newest", Colour::kGreen, colour)
                                   : "whole";
  if (view.pinned) text += ", pinned";
  return text;
}

std::string owner_text(const OwnerView& owner) {
  const Identity& who = owner.record.who;
  return fmt::format("{}: {} (process {}), since {}{}",
                     owner.dead ? "last owner" : "owner", printable(who.host), who.pid,
                     human_date(owner.record.since),
                     owner.dead ? ", but " + printable(*owner.dead) : "");
}

void print_steps(const Context& context, const RunView& run) {
  const bool colour = context.terminal.colour;
  Table table("lrrrrrll");
  table.add({"folder", "step", "saved", "age", "size", "ranks", "metrics", "state"});
  for (const StepView& view : run.steps) {
    const Manifest& manifest = view.step.manifest;
    table.add({view.step.name.text(), std::to_string(manifest.step),
               human_date(manifest.created),
               human_age(context.env.wall_now() - manifest.created),
               human_bytes(view.bytes), std::to_string(manifest.world),
               metrics_text(manifest), state_text(view, colour)});
  }
  fmt::print(context.out, "{}", table.text());
}

void print_run(const Context& context, const RunView& run) {
  fmt::print(context.out, "{}: run {}, {} steps\n", printable(run.path.native()),
             printable(run.id), run.steps.size());
  if (run.owner) fmt::print(context.out, "{}\n", owner_text(*run.owner));
  if (!run.steps.empty()) print_steps(context, run);
  for (const StepView& view : run.steps) {
    if (!view.why_not) continue;
    fmt::print(context.out, "damaged: {}: {}\n", view.step.name.text(),
               printable(view.why_not->message()));
  }
  for (const SkippedStep& skipped : run.skipped) {
    fmt::print(context.out, "skipped: {}: {}\n", printable(skipped.folder),
               printable(skipped.error.message()));
  }
  const bool live = run.owner && !run.owner->dead;
  for (const std::string& name : run.attempts) {
    fmt::print(context.out, "attempt: {}: {}\n", name,
               live ? "in flight, or left by a crash" : "left by a crash, not a step");
  }
}

void print_all(const Context& context, const std::vector<RunList>& all) {
  bool first = true;
  for (const RunList& one : all) {
    for (const RunView& run : one.runs) {
      if (!first) fmt::print(context.out, "\n");
      print_run(context, run);
      first = false;
    }
    for (const SkippedStep& skipped : one.skipped) {
      fmt::print(context.out, "skipped: {}: {}\n", printable(skipped.folder),
                 printable(skipped.error.message()));
    }
  }
}

Result<ExitCode> ls(const Context& context, const LsArguments& arguments) {
  std::vector<RunList> all;
  std::vector<FailedPath> failed;
  for (const std::string& path : arguments.paths) {
    Result<RunList> seen = list_runs(context.env, path);
    if (seen.ok()) {
      all.push_back(*std::move(seen));
    } else {
      failed.push_back({path, seen.error()});
    }
  }
  if (arguments.json) {
    fmt::print(context.out, "{}\n", ls_json(all, failed));
  } else {
    print_all(context, all);
  }
  return tell_failed(context, failed);
}

}  // namespace

Verb ls_verb() {
  auto arguments = std::make_shared<LsArguments>();  // shared with `run` below
  LsArguments& a = *arguments;
  return {.name = "ls",
          .summary = "List runs and their steps, newest first",
          .footer = kLsExample,
          .options =
              {{"RUN",
                "Run directories or folders with runs; the current folder if not given",
                &a.paths},
               {"--json", "Print the result as JSON, for programs", &a.json}},
          .run = [arguments](const Context& c) { return ls(c, *arguments); }};
}

}  // namespace holdfast

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

Checks only names, sizes and small files; holdfast verify reads every byte. On a terminal
that is too narrow for all columns, step, saved and ranks are left out and long names are
shortened; -v prints all of it. What is not printed to a terminal is never shortened.)";

struct LsArguments {
  std::vector<std::string> paths{"."};
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
                     owner.dead ? "; " + printable(*owner.dead) : "");
}

// The most columns that a line may have; 0 if it may have any number.
size_t width_for(const Context& context) {
  return context.verbose ? 0 : context.terminal.width;
}

void print_wrapped(const Context& context, const std::string& line) {
  fmt::print(context.out, "{}\n", wrap(line, width_for(context)));
}

// Makes the table as narrow as the terminal. The folder's name says the step, and the
// age says when it was saved.
void fit(const Context& context, Table& table) {
  const size_t width = width_for(context);
  for (const char* title : {"step", "saved", "ranks"}) {
    if (width == 0 || table.width() <= width) return;
    table.remove(title);
  }
  table.shrink("metrics", width);
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
  fit(context, table);
  fmt::print(context.out, "{}", table.text());
}

// "runs/gpt: run 15d6b9f6a2083559618062947620efd3, 3 steps". If this is too long, the
// identity and then the path are shortened.
std::string title_text(const Context& context, const RunView& run) {
  const std::string path = printable(run.path.native()), id = printable(run.id);
  const auto after = [&](size_t digits) {
    return fmt::format(": run {}, {} {}", shorten(id, digits), run.steps.size(),
                       run.steps.size() == 1 ? "step" : "steps");
  };
  const size_t width = width_for(context);
  if (width == 0 || path.size() + after(id.size()).size() <= width) {
    return path + after(id.size());
  }
  constexpr size_t kDigits = 11, kLeast = 20;
  const size_t rest = after(kDigits).size();
  return shorten(path, std::max(width - std::min(width, rest), kLeast)) +
         after(kDigits);
}

void print_skipped(const Context& context, const std::vector<SkippedStep>& list) {
  for (const SkippedStep& skipped : list) {
    print_wrapped(context, fmt::format("skipped: {}: {}", printable(skipped.folder),
                                       printable(skipped.error.message())));
  }
}

void print_run(const Context& context, const RunView& run) {
  fmt::print(context.out, "{}\n", title_text(context, run));
  if (run.owner) print_wrapped(context, owner_text(*run.owner));
  if (!run.steps.empty()) print_steps(context, run);
  for (const StepView& view : run.steps) {
    if (!view.why_not) continue;
    print_wrapped(context, fmt::format("damaged: {}: {}", view.step.name.text(),
                                       printable(view.why_not->message())));
  }
  print_skipped(context, run.skipped);
  const bool live = run.owner && !run.owner->dead;
  for (const std::string& name : run.attempts) {
    print_wrapped(context, fmt::format("attempt: {}: {}", name,
                                       live ? "in flight, or left by a crash"
                                            : "left by a crash, not a step"));
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
    print_skipped(context, one.skipped);
  }
}

// The step of RUN@STEP alone, and the runs at any other path.
Result<RunList> list_runs_or_step(Env& env, const std::string& path) {
  Result<RunList> seen = list_runs(env, path);
  const size_t at = path.rfind('@');
  if (seen.ok() || !is_missing(seen.error()) || at == path.npos) return seen;
  const Result<Run> run = Run::open(env, path.substr(0, at));
  if (!run.ok()) return seen;
  const Step step = HOLDFAST_TRY(find_step(*run, path.substr(at + 1)));
  RunView view = HOLDFAST_TRY(view_run(env, run->path()));
  std::erase_if(view.steps,
                [&](const StepView& one) { return one.step.name != step.name; });
  view.skipped.clear();
  view.attempts.clear();
  return RunList{.runs = {std::move(view)}};
}

Result<ExitCode> ls(const Context& context, const LsArguments& arguments) {
  std::vector<RunList> all;
  std::vector<FailedPath> failed;
  for (const std::string& path : arguments.paths) {
    Result<RunList> seen = list_runs_or_step(context.env, path);
    if (seen.ok()) {
      all.push_back(*std::move(seen));
    } else {
      failed.push_back({path, seen.error()});
    }
  }
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) {
      put_members(field, all);
      field.list("errors", failed);
    });
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
                "Run directories, folders with runs, or RUN@STEP; the current folder if "
                "not given",
                &a.paths}},
          .run = [arguments](const Context& c) { return ls(c, *arguments); }};
}

}  // namespace holdfast

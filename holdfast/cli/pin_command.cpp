// `holdfast pin` and `holdfast unpin`: keep a step from retention, or stop keeping it.
#include <fmt/ostream.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/inspect/open_any.h"
#include "holdfast/store/retention.h"

namespace holdfast {
namespace {

struct PinArguments {
  std::string run, step;
};

Result<ExitCode> set_pin(const Context& context, const PinArguments& arguments,
                         bool pinned) {
  const Run run = HOLDFAST_TRY(Run::open(context.env, arguments.run));
  const StepName name = HOLDFAST_TRY(find_step(run, arguments.step)).name;
  HOLDFAST_TRY(pinned ? pin(run, name) : unpin(run, name));
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) {
      field("run", arguments.run);
      field("folder", name.text());
      field("pinned", pinned);
    });
  } else {
    fmt::print(context.out, "{} is {}pinned\n", name.text(), pinned ? "" : "not ");
  }
  return ExitCode::kDone;
}

Verb verb_of(const char* name, const char* summary, const char* footer, bool pinned) {
  auto arguments = std::make_shared<PinArguments>();  // shared with `run` below
  PinArguments& a = *arguments;
  return {.name = name,
          .summary = summary,
          .footer = footer,
          .options = {{"RUN", "The run directory", &a.run, true},
                      {"STEP",
                       "The number of the step, or its folder's name as ls shows it",
                       &a.step, true}},
          .run = [arguments, pinned](const Context& c) {
            return set_pin(c, *arguments, pinned);
          }};
}

}  // namespace

Verb pin_verb() {
  return verb_of("pin", "Keep a step, whatever the rules of retention say", R"(
Example:
  holdfast pin runs/gpt 400

Works also while a job writes to the run.)",
                 true);
}

Verb unpin_verb() {
  return verb_of("unpin", "Leave a step to the rules of retention again", R"(
Example:
  holdfast unpin runs/gpt 400)",
                 false);
}

}  // namespace holdfast

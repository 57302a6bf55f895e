// `holdfast diff`: compares two checkpoints.
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

constexpr const char* kDiffExample = R"(
Examples:
  holdfast diff runs/gpt@300 runs/gpt@400
  holdfast diff model.pt model.safetensors
  holdfast diff a.pt b.pt --json

Exits with 0 if everything is equal bit by bit, and with 1 if not. The relative
difference is |a - b| / max(|a|, |b|). Lists the first 20 tensors that are not equal, by
name; -v lists all of them, and --all lists equal tensors, too.)";

// How many tensors are listed, unless -v or --all asks for more.
constexpr int64_t kTensorsShown = 20;

struct DiffArguments {
  std::string a, b;
  bool all = false;
};

std::string kind_text(const TensorKind& kind) {
  return fmt::format("{} {}", name_of(kind.dtype), to_string(kind.shape));
}

std::vector<std::string> row_of(const TensorDiff& tensor) {
  const std::string name = printable(tensor.name);
  switch (tensor.verdict) {
    case Verdict::kEqual: return {name, "equal"};
    case Verdict::kOnlyA: return {name, "only in the first"};
    case Verdict::kOnlyB: return {name, "only in the second"};
    case Verdict::kDtype:
    case Verdict::kShape:
      return {name,
              fmt::format("{} against {}", kind_text(*tensor.a), kind_text(*tensor.b))};
    case Verdict::kDiffers: break;
  }
  return {name,
          fmt::format("{} of {} elements", human_count(tensor.differing),
                      human_count(tensor.a->shape.elements())),
          human_number(tensor.max_absolute), human_number(tensor.max_relative),
          fmt::format("[{}]", fmt::join(tensor.first, ", "))};
}

void print_tensors(const Context& context, const DiffReport& report, bool all) {
  Table table("llrrl");
  table.add({"tensor", "differs", "max difference", "relative", "first at"});
  const bool any_number = all || context.verbose;
  int64_t rows = 0;
  for (const TensorDiff& tensor : report.tensors) {
    if (!all && tensor.verdict == Verdict::kEqual) continue;
    if (any_number || rows < kTensorsShown) table.add(row_of(tensor));
    ++rows;
  }
  if (rows > 0) fmt::print(context.out, "{}", table.text());
  if (!any_number && rows > kTensorsShown) {
    fmt::print(context.out, "and {} more (-v lists all)\n",
               human_count(rows - kTensorsShown));
  }
}

// "14 of 17 tensors are equal, 2 differ, 1 is only in the first".
std::string counts_text(const DiffReport& report) {
  const auto all = std::ssize(report.tensors);
  std::string text =
      fmt::format("{} of {} tensors are equal",
                  human_count(report.count(Verdict::kEqual)), human_count(all));
  const auto add = [&](int64_t count, const char* one, const char* several) {
    if (count == 0) return;
    text += fmt::format(", {} {}", human_count(count), count == 1 ? one : several);
  };
  add(report.count(Verdict::kDiffers), "differs", "differ");
  add(report.count(Verdict::kDtype) + report.count(Verdict::kShape),
      "has another dtype or shape", "have another dtype or shape");
  add(report.count(Verdict::kOnlyA), "is only in the first", "are only in the first");
  add(report.count(Verdict::kOnlyB), "is only in the second", "are only in the second");
  return text;
}

void print_report(const Context& context, const DiffReport& report, bool all) {
  print_tensors(context, report, all);
  if (report.objects) {
    fmt::print(context.out, "objects differ at {}\n", printable(*report.objects));
  }
  for (const std::string& line : report.left_out) {
    fmt::print(context.out, "not compared: {}\n", printable(line));
  }
  fmt::print(context.out, "{}{}; {} compared\n", counts_text(report),
             report.equal()   ? ", and so are the objects"
             : report.objects ? "; the objects differ"
                              : "; the objects are equal",
             human_bytes(report.bytes));
}

Result<ExitCode> diff_paths(const Context& context, const DiffArguments& arguments) {
  const OpenedAny a = HOLDFAST_TRY(open_any(context.env, arguments.a));
  tell_skipped(context, a.found);
  const OpenedAny b = HOLDFAST_TRY(open_any(context.env, arguments.b));
  tell_skipped(context, b.found);
  ProgressBar bar(context, "diff");
  const DiffReport report =
      HOLDFAST_TRY(diff(a.contents, b.contents, {}, bar.callback()));
  bar.clear();
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) {
      field("a", arguments.a);
      field("b", arguments.b);
      put_members(field, report);
    });
  } else {
    print_report(context, report, arguments.all);
  }
  return report.equal() ? ExitCode::kDone : ExitCode::kFailed;
}

}  // namespace

Verb diff_verb() {
  auto arguments = std::make_shared<DiffArguments>();  // shared with `run` below
  DiffArguments& a = *arguments;
  return {.name = "diff",
          .summary = "Compare two checkpoints tensor by tensor",
          .footer = kDiffExample,
          .options = {{"A", "A file, a step, a run, or RUN@STEP", &a.a, true},
                      {"B", "The other file, step or run; its format may differ", &a.b,
                       true},
                      {"--all", "List equal tensors too", &a.all}},
          .run = [arguments](const Context& c) { return diff_paths(c, *arguments); }};
}

}  // namespace holdfast

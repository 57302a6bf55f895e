// `holdfast repair`: mends damage, exactly or not at all.
#include <fmt/ostream.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_print.h"
#include "holdfast/cli/text.h"
#include "holdfast/contents/patch.h"
#include "holdfast/corruption/repair.h"
#include "holdfast/formats/format.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

constexpr const char* kRepairExample = R"(
Examples:
  holdfast repair hurt.pt whole.pt        writes a mended copy
  holdfast repair runs/gpt@400 --in-place
  holdfast repair hurt.pt --dry-run       only says what is damaged and what was there

Mends one damaged word of each tensor by its seal: in steps, and in files that were
sealed (holdfast seal). Without seals, mends one flipped bit of a record by its checksum:
in .pt, .npz and .keras files and TensorFlow's checkpoints. In a record of more than 0.5
MB, other damage passes too often for one flipped bit, so nothing is written without
seals. The result is verified before it is kept. What an interrupted patch has left is
always undone first, in place.)";

struct RepairArguments {
  std::string path, to;
  bool in_place = false, dry_run = false, json = false;
};

Result<void> check_call(const RepairArguments& a) {
  if (a.dry_run || a.in_place != !a.to.empty()) return {};
  if (a.in_place) {
    return invalid("repair: TO and --in-place are both given; expected one of them");
  }
  return invalid("repair: no TO; expected a new name, --in-place or --dry-run");
}

// Undoes what an interrupted patch has left. Returns whether there was something.
Result<bool> undo_patches(Env& env, const std::string& path) {
  const Result<bool> undone = repair_file(env, path);
  if (undone.ok() || !is_missing(undone.error())) return undone;
  return false;  // RUN@STEP
}

void print_report(const Context& context, const RepairArguments& a, const Found& found,
                  const RepairReport& report, bool undone) {
  const Path kept = a.to.empty() ? found.path : Path(a.to);
  const bool written = !a.dry_run && !report.whole();
  if (a.json) {
    OrderedJson mended = OrderedJson::array();
    for (const Mended& one : report.mended) {
      mended.push_back(
          {{"file", one.file}, {"tensor", one.tensor}, {"what", one.what}});
    }
    const OrderedJson json{{"path", found.path.native()},
                           {"to", written ? OrderedJson(kept.native()) : OrderedJson()},
                           {"undone", undone},
                           {"mended", mended}};
    fmt::print(context.out, "{}\n", print_json(json));
    return;
  }
  if (undone) fmt::print(context.out, "an interrupted patch was undone\n");
  for (const Mended& one : report.mended) {
    const std::string& where = one.tensor.empty() ? one.file : one.tensor;
    fmt::print(context.out, "{} {}\n", printable(where), printable(one.what));
  }
  if (report.whole()) {
    fmt::print(context.out, "{} is whole, nothing is to be mended{}\n",
               printable(found.path.native()),
               a.to.empty() ? "" : ", and no copy is written");
  } else if (!a.dry_run) {
    fmt::print(context.out, "{} is whole\n", printable(kept.native()));
  }
}

Result<ExitCode> repair_path(const Context& context, const RepairArguments& a) {
  Env& env = context.env;
  HOLDFAST_TRY(check_call(a));
  if (!a.to.empty()) HOLDFAST_TRY(check_place(a.to));
  bool undone = false;
  if (!a.dry_run) undone = HOLDFAST_TRY(undo_patches(env, a.path));
  const Found found = HOLDFAST_TRY(find_any(env, a.path));
  if (found.step() && !a.dry_run) {
    undone = HOLDFAST_TRY(repair_patch(env, found.path / "")) || undone;
  }
  const RepairReport report = HOLDFAST_TRY(plan_repair(env, found));
  if (!a.dry_run && !report.whole()) {
    HOLDFAST_TRY(a.in_place ? repair_in_place(env, found, report)
                            : repair_copy(env, found, report, a.to));
  }
  print_report(context, a, found, report, undone);
  return a.dry_run && !report.whole() ? ExitCode::kDamage : ExitCode::kDone;
}

}  // namespace

Verb repair_verb() {
  auto arguments = std::make_shared<RepairArguments>();  // shared with `run` below
  RepairArguments& a = *arguments;
  return {.name = "repair",
          .summary = "Mend damage by seals and checksums, exactly or not at all",
          .footer = kRepairExample,
          .options = {{"PATH", "A file, a step, a run, or RUN@STEP", &a.path, true},
                      {"TO", "The mended copy, a new name", &a.to},
                      {"--in-place", "Mend the original", &a.in_place},
                      {"--dry-run", "Only say what would be mended", &a.dry_run},
                      {"--json", "Print the result as JSON, for programs", &a.json}},
          .run = [arguments](const Context& c) { return repair_path(c, *arguments); }};
}

}  // namespace holdfast

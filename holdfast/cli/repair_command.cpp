// `holdfast repair`: mends damage, exactly or not at all.
#include <fmt/ostream.h>

#include <cstdlib>
#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/cli/text.h"
#include "holdfast/contents/patch.h"
#include "holdfast/corruption/alter.h"
#include "holdfast/repair/repair.h"
#include "holdfast/formats/format.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

constexpr const char* kRepairExample = R"(
Examples:
  holdfast repair runs/gpt@400            mends the files of a step
  holdfast repair runs/gpt@400 --tier s3://bucket/gpt
  holdfast repair hurt.pt whole.pt        writes a mended copy
  holdfast repair hurt.pt whole.pt --from older_copy.safetensors
  holdfast repair hurt.pt --dry-run       only says what is damaged and what was there

A step: each damaged chunk is read again, then mended by the first of these that gives
bytes with the right digest: the seals of its tensors, its CRC, the copy of the step in a
tier (those that the run was copied to, or --tier), other steps of the run, --from, and
parity. The mended file then replaces the damaged one, also in other steps that link it.

Other files: one damaged word of each tensor by seals beside the file (holdfast seal), one
flipped bit of a record by its checksum (.pt, .npz and .keras files and TensorFlow's
checkpoints), and any elements of which --from has a copy. In a record of more than 0.5 MB,
other damage passes too often for one flipped bit, so nothing is written without seals or
--from. The result is verified before it is kept. What an interrupted patch has left is
always undone first, in place.)";

struct RepairArguments {
  std::string path, to, from;
  std::vector<std::string> tiers;
  int64_t search = 30;
  bool in_place = false, dry_run = false;
};

// A step is mended by replacing its files, so it needs no other name.
Result<void> check_call(const RepairArguments& a, bool step) {
  constexpr int64_t kLongest = 1'000'000;
  if (a.search < 0 || a.search > kLongest) {
    return invalid("--search {}: expected 0 to {} seconds", a.search, kLongest);
  }
  const bool both = a.in_place && !a.to.empty();
  if (a.dry_run || a.in_place != !a.to.empty() || (step && !both)) return {};
  if (a.in_place) {
    return invalid("repair: TO and --in-place are both given; expected one of them");
  }
  return invalid("repair: no TO; expected a new name, --in-place or --dry-run");
}

std::optional<std::string> read_variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Undoes what an interrupted patch has left. Returns whether there was something.
Result<bool> undo_patches(Env& env, const std::string& path, FileLocks& locks) {
  const Result<bool> undone = repair_file(env, path, locks);
  if (undone.ok() || !is_missing(undone.error())) return undone;
  return false;  // RUN@STEP
}

void put_mended(FieldWriter& field, const Mended& one) {
  field("file", one.file);
  field("tensor", one.tensor);
  field("what", one.what);
  field("rung", one.rung);
}

void put_lost(FieldWriter& field, const LostPart& one) {
  field("file", one.damage.file);
  field("chunk", one.damage.chunk);
  field("offset", one.damage.offset);
  field("bytes", one.damage.bytes);
  field("tensors", one.damage.tensors);
  field("what", one.damage.what);
  field.list("rungs", one.rungs, [](FieldWriter& each, const LostPart::Said& said) {
    each("rung", said.rung);
    each("why", said.why);
  });
}

void print_parts(const Context& context, const RepairReport& report) {
  for (const Mended& one : report.mended) {
    const std::string& where = one.tensor.empty() ? one.file : one.tensor;
    const bool told = one.what.find(", by ") != std::string::npos ||
                      one.what.find("from ") != std::string::npos;
    fmt::print(context.out, "{} {}{}\n", printable(where), printable(one.what),
               told ? "" : fmt::format(" ({})", one.rung));
  }
  for (const LostPart& one : report.lost) {
    fmt::print(context.out, "{}\n", printable(to_string(one)));
  }
}

void print_report(const Context& context, const RepairArguments& a, const Found& found,
                  const RepairReport& report, bool undone) {
  const Path kept = a.to.empty() ? found.path : Path(a.to);
  const bool written = !a.dry_run && report.lost.empty() && report.changes();
  if (context.json) {
    return print_json(context.out, [&](FieldWriter& field) {
      field("path", found.path.native());
      field("to", written ? std::optional(kept.native()) : std::nullopt);
      field("undone", undone);
      field.list("mended", report.mended, put_mended);
      field.list("lost", report.lost, put_lost);
    });
  }
  if (undone) fmt::print(context.out, "an interrupted patch was undone\n");
  print_parts(context, report);
  const std::string path = printable(found.path.native());
  const char* const no_copy = a.to.empty() ? "" : ", and no copy is written";
  if (!report.lost.empty()) {
    fmt::print(context.out, "{}: {} damaged {} cannot be mended; nothing was changed\n",
               path, report.lost.size(), report.lost.size() == 1 ? "part" : "parts");
  } else if (report.whole()) {
    fmt::print(context.out, "no damage was found in {}, nothing is to be mended{}\n",
               path, no_copy);
  } else if (!report.changes()) {
    fmt::print(context.out, "{} is whole on the disk, nothing was changed{}\n", path,
               no_copy);
  } else if (!a.dry_run) {
    fmt::print(context.out, "{} is whole\n", printable(kept.native()));
  }
}

RepairSources sources_of(Env& env, const RepairArguments& a, const Found& found) {
  RepairSources sources{.tiers = a.tiers, .variables = read_variable};
  sources.search_time = std::chrono::seconds(a.search);
  if (sources.tiers.empty()) sources.tiers = recorded_tiers(env, found);
  if (!a.from.empty()) sources.from = a.from;
  return sources;
}

Result<ExitCode> repair_path(const Context& context, const RepairArguments& a) {
  Env& env = context.env;
  if (!a.to.empty()) HOLDFAST_TRY(check_place(a.to));
  bool undone = false;
  HOLDFAST_TRY(check_call(a, true));
  FileLocks locks;
  if (!a.dry_run) undone = HOLDFAST_TRY(undo_patches(env, a.path, locks));
  const Found found = HOLDFAST_TRY(find_to_repair(env, a.path));
  tell_skipped(context, found);
  HOLDFAST_TRY(check_call(a, found.step()));
  if (found.step() && !a.dry_run) {
    undone = HOLDFAST_TRY(repair_patch(env, found.path / "", locks)) || undone;
  }
  if (!a.dry_run) HOLDFAST_TRY(lock_files_of(env, found, LockKind::kExclusive, locks));
  ProgressBar bar(context, "bits tried", ProgressUnit::kTrials);
  RepairSources sources = sources_of(env, a, found);
  sources.progress = bar.callback();
  RepairReport report = HOLDFAST_TRY(plan_repair(env, found, sources));
  bar.clear();
  if (!a.dry_run && report.lost.empty() && report.changes()) {
    const std::vector<Mended> more =
        HOLDFAST_TRY(a.to.empty() ? repair_in_place(env, found, report, locks)
                                  : repair_copy(env, found, report, a.to));
    report.mended.insert(report.mended.end(), more.begin(), more.end());
  }
  print_report(context, a, found, report, undone);
  const bool damaged = !report.lost.empty() || (a.dry_run && report.changes());
  return damaged ? ExitCode::kDamage : ExitCode::kDone;
}

}  // namespace

Verb repair_verb() {
  auto arguments = std::make_shared<RepairArguments>();  // shared with `run` below
  RepairArguments& a = *arguments;
  return {.name = "repair",
          .summary = "Mend damage by seals, checksums and copies, exactly or not at all",
          .footer = kRepairExample,
          .options = {{"PATH", "A file, a step, a run, or RUN@STEP", &a.path, true},
                      {"TO", "The mended copy, a new name", &a.to},
                      {"--in-place", "Mend the original, as always for a step",
                       &a.in_place},
                      {"--tier",
                       "A tier that has the same step: a folder or s3://bucket/prefix; "
                       "otherwise the tiers that the run was copied to",
                       &a.tiers},
                      {"--from", "Another checkpoint that has some of the same tensors",
                       &a.from},
                      {"--search",
                       "Seconds to look for a flipped bit in a header (30)", &a.search},
                      {"--dry-run", "Only say what would be mended", &a.dry_run}},
          .run = [arguments](const Context& c) { return repair_path(c, *arguments); }};
}

}  // namespace holdfast

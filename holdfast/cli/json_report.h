// The output of --json for each verb. Programs read it, so a field is removed or changed
// only with a higher version (base/report_json.h). All output is ASCII, so that no name
// can send control characters to a terminal; bytes that are not UTF-8 become U+FFFD.
#pragma once

#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "holdfast/base/report_json.h"
#include "holdfast/cli/command.h"
#include "holdfast/cli/path_summary.h"
#include "holdfast/inspect/convert.h"
#include "holdfast/inspect/diff.h"
#include "holdfast/inspect/gc.h"
#include "holdfast/inspect/list_runs.h"
#include "holdfast/inspect/verify.h"
#include "holdfast/reshard/reshard.h"

namespace holdfast {

// Prints a report. Its members are named by describe(field), or else by the function
// put_members(field, report...).
void print_json(std::ostream& out, const std::invocable<FieldWriter&> auto& describe) {
  out << report_json(describe) << '\n';
}
void print_json(std::ostream& out, const auto&... report) {
  print_json(out, [&](FieldWriter& field) { put_members(field, report...); });
}

// The members of the reports.
void put_members(FieldWriter& field, const FailedPath& failed);  // of a list "errors"
// The object that cli.h describes for failed commands.
void put_members(FieldWriter& field, const Error& error, ExitCode exit);
void put_members(FieldWriter& field, std::span<const RunList> lists);
void put_members(FieldWriter& field, const PathSummary& shown, bool layout);
void put_members(FieldWriter& field, const Verified& verified);
void put_members(FieldWriter& field, const DiffReport& report);
void put_members(FieldWriter& field, const GcResult& done);
// `done` is empty if the plan was not carried out.
void put_members(FieldWriter& field, const ReshardPlan& plan, const std::string& to,
                 const std::optional<Resharded>& done);

// Prints what `convert` or `export` has written, also as text. The notes have this key in
// JSON, and in the text these words before each.
void print_written(const Context& context, const Written& done,
                   std::string_view notes_key, std::string_view before_note);

}  // namespace holdfast

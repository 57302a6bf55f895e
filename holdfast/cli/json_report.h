// The output of --json for each verb. Programs read it, so a field is removed or changed
// only with a higher version (base/report_json.h). All output is ASCII, so that no name
// can send control characters to a terminal; bytes that are not UTF-8 become U+FFFD. It
// does not end with a line feed.
#pragma once

#include <span>
#include <string>

#include "holdfast/base/report_json.h"
#include "holdfast/cli/command.h"
#include "holdfast/cli/path_summary.h"
#include "holdfast/reshard/reshard.h"
#include "holdfast/inspect/convert.h"
#include "holdfast/inspect/export.h"
#include "holdfast/inspect/diff.h"
#include "holdfast/inspect/gc.h"
#include "holdfast/inspect/list_runs.h"
#include "holdfast/inspect/verify.h"

namespace holdfast {

// The list "errors" of verbs that take several paths.
OrderedJson errors_json(std::span<const FailedPath> failed);
// The object that cli.h describes for failed commands.
std::string error_json(const Error& error, ExitCode exit);
std::string ls_json(std::span<const RunList> lists, std::span<const FailedPath> failed);
std::string show_json(const PathSummary& shown, bool layout);
std::string verify_json(std::span<const Verified> all,
                        std::span<const FailedPath> failed);
std::string diff_json(const std::string& a, const std::string& b,
                      const DiffReport& report);
std::string gc_json(const std::string& run, bool dry_run, const GcResult& done);
std::string pin_json(const std::string& run, const std::string& folder, bool pinned);
std::string convert_json(const Converted& done);
std::string export_json(const Exported& done);
// `done` is empty if the plan was not carried out.
std::string reshard_json(const ReshardPlan& plan, const std::string& to,
                         const std::optional<Resharded>& done);

}  // namespace holdfast

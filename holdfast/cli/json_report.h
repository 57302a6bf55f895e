// What --json prints, verb by verb. Field names are stable: programs read them. All text
// ends without a line end and is ASCII, so that no name can speak to a terminal; names
// that are no UTF-8 have U+FFFD where they are not.
#pragma once

#include <span>
#include <string>

#include "holdfast/cli/command.h"
#include "holdfast/cli/path_summary.h"
#include "holdfast/inspect/convert.h"
#include "holdfast/inspect/diff.h"
#include "holdfast/inspect/gc.h"
#include "holdfast/inspect/list_runs.h"
#include "holdfast/inspect/verify.h"

namespace holdfast {

// As in cli.h.
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

}  // namespace holdfast

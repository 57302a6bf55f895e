// The version of the JSON reports that `holdfast VERB --json` prints and that Python
// returns.
#pragma once

#include "holdfast/base/json.h"

namespace holdfast {

// A field of a report is never removed, and never changes its meaning, unless this
// number becomes higher. New fields may come without a higher number.
inline constexpr int kReportVersion = 1;

// Returns the report, an object, with "version" as its first field.
inline OrderedJson with_version(OrderedJson report) {
  OrderedJson all{{"version", kReportVersion}};
  for (auto& [key, value] : report.items()) all[key] = std::move(value);
  return all;
}

}  // namespace holdfast

// Prints docs/schedule.md, a study that measures the schedules of COCI and others.
// `holdfast simulate --study > docs/schedule.md` makes it. The result has the same bits
// on every machine.
#pragma once

#include <string>

#include "holdfast/base/result.h"

namespace holdfast {

Result<std::string> schedule_study();

}  // namespace holdfast

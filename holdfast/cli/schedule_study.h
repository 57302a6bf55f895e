// docs/schedule.md: COCI's question, answered with numbers. Made by one command:
// `holdfast simulate --study > docs/schedule.md`. Same bits on any machine.
#pragma once

#include <string>

#include "holdfast/base/result.h"

namespace holdfast {

Result<std::string> schedule_study();

}  // namespace holdfast

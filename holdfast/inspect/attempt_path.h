// Names for files and folders that are being written, beside their targets.
#pragma once

#include "holdfast/env/env.h"

namespace holdfast {

// A hidden name beside `target`, ".NAME.*.tmp", that no other process uses. First
// removes what killed processes of this machine have left under such names.
Path choose_attempt(Env& env, const Path& target);

}  // namespace holdfast

// The one place where the system's error numbers become our codes.
#pragma once

#include <string_view>

#include "holdfast/base/result.h"
#include "holdfast/env/file.h"

namespace holdfast {

// "path: what: text of the number", with the code that says what the caller can do. If
// nothing is at the path, the call that noticed it is left out.
Error errno_error(int number, std::string_view what, const Path& path);

}  // namespace holdfast

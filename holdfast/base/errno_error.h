// The one place where the system's error numbers become our codes.
#pragma once

#include <string_view>

#include "holdfast/base/file.h"
#include "holdfast/base/result.h"

namespace holdfast {

// "path: what: text of the number", with the code that says what the caller can do.
Error errno_error(int number, std::string_view what, const Path& path);

}  // namespace holdfast

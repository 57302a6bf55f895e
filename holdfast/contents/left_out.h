// What goes into the lines of Contents::left_out.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/base/result.h"

namespace holdfast {

// The message of an error without the place in front of it: a line of left_out has a name
// there.
std::string why_of(const Error& error, std::string_view place);

}  // namespace holdfast

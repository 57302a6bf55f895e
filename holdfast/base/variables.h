// Environment variables. The library never reads the environment itself: a program or
// the Python module passes a function that looks variables up.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace holdfast {

// The value of an environment variable; nullopt where it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

}  // namespace holdfast

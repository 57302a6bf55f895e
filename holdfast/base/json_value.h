// The type of JSON documents, for headers that only pass documents on. The whole JSON
// library comes with json.h and takes a second to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace holdfast {

using Json = nlohmann::json;

}  // namespace holdfast

// The names of JSON documents, for headers that only pass them on: the whole of the JSON
// library takes a second to compile and comes with json.h.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace holdfast {

using Json = nlohmann::json;
// Keeps the order of insertion: for what we write.
using OrderedJson = nlohmann::ordered_json;

}  // namespace holdfast

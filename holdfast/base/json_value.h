// The types of JSON documents, for headers that only pass documents on. The whole JSON
// library comes with json.h and takes a second to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace holdfast {

using Json = nlohmann::json;
// Keeps keys in the order of insertion; used for documents that we write.
using OrderedJson = nlohmann::ordered_json;

}  // namespace holdfast

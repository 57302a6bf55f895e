// A collection as JSON, so that layouts can be kept in files, sent, and used for plans.
//
//   {"holdfast": "collection", "version": 1,
//    "hosts":   [{"name": "host-0", "island": 0, "shared_storage": false}],
//    "holders": [{"name": "device-0", "kind": "memory", "host": "host-0"}],
//    "tensors": [{"name": "w", "dtype": "F32", "shape": [4, 6], "role": "parameter"}],
//    "slices":  [{"tensor": "w", "box": [[0, 4], [0, 3]],
//                 "copies": [{"holder": "device-0", "offset": 0}]}]}
//
// Optional: a host's island and shared_storage; a tensor's role (default: parameter),
// of, ties (its aliases) and pad_multiple; a copy's strides in bytes (default: row-major without
// gaps). Unknown keys, unknown names and another version are refused.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/state/collection.h"

namespace holdfast {

inline constexpr int64_t kCollectionVersion = 1;

// In one line, or with so many spaces for each level.
std::string to_json_text(const Collection& collection, const Topology& topology,
                         int indent = -1);

// Reads a collection and adds its hosts to `topology`, so that several files can be
// read into one topology. A host whose name is already there is the same host, and must
// have the same description.
Result<Collection> parse_collection(std::string_view json, std::string_view where,
                                    Topology& topology);

}  // namespace holdfast

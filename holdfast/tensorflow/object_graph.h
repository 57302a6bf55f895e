// The graph of a program's objects, by which TensorFlow finds the variables of a
// checkpoint. It is a message of protocol buffers in the string tensor
// _CHECKPOINTABLE_OBJECT_GRAPH. Node 0 is the object that was saved.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/bytes.h"

namespace holdfast {

inline constexpr std::string_view kObjectGraphKey = "_CHECKPOINTABLE_OBJECT_GRAPH";

struct TrackedObject {
  struct Child {
    std::string name{};  // the attribute or the place in a list: "kernel", "3"
    size_t node = 0;
  };
  // A variable that an optimizer keeps for another one.
  struct Slot {
    size_t original = 0;
    size_t slot = 0;
  };
  std::vector<Child> children{};
  std::vector<Slot> slots{};
  // If the object is a variable: its tensor, and the name that the program gave it, such
  // as "sequential/dense/kernel".
  std::string key{};
  std::string full_name{};
};

struct ObjectGraph {
  std::vector<TrackedObject> nodes{};
};

// Returns nullopt if the bytes are no such graph, or if it names a node that it does not
// have.
std::optional<ObjectGraph> parse_object_graph(ByteView message);

}  // namespace holdfast

// Reads Python's pickles (protocols 0 to 5) as data, and only as data.
//
// A pickle is a program for a stack machine that imports and calls what it likes. This
// machine has the same stack but neither imports nor calls anything: a name of a function
// stays a name, a call of it becomes a node that says which arguments it would have had.
// What such a call means is up to the reader of the nodes.
//
// kUnsupported, naming it and its byte: a name that the caller does not allow, and an
// opcode that makes objects of other kinds. kCorrupt: what is no pickle.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/state/object.h"

namespace holdfast {

using PickleId = uint32_t;
inline constexpr PickleId kNoPickleId = UINT32_MAX;

// Nodes refer to each other by id and may be shared, and a hostile pickle makes cycles:
// whoever walks them has to watch depth and amount.
struct PickleNode {
  struct List {
    std::vector<PickleId> items;
  };
  struct Tuple {
    std::vector<PickleId> items;
  };
  // Also of collections.OrderedDict and defaultdict; the attributes of the first (a state
  // dict's _metadata) and the factory of the second are dropped. Keys are in order of insertion and may repeat.
  struct Dict {
    std::vector<std::pair<PickleId, PickleId>> items;
  };
  // "module.name", never looked up.
  struct Global {
    std::string name;
  };
  // A call that was not made, and what the program would have done to its result; those
  // that are kNoPickleId it would not.
  struct Call {
    PickleId function;   // a Global
    PickleId arguments;  // a Tuple
    PickleId state;      // its attributes: anything, but a Dict as a rule
    PickleId items;      // a List of what would be appended to it
    PickleId entries;    // a Dict of what would be set in it
  };
  // An object that lies outside of the pickle.
  struct Persistent {
    PickleId id;
  };
  using Value =
      std::variant<Object::None, bool, int64_t, Object::BigInteger, double, std::string,
                   Bytes, List, Tuple, Dict, Global, Call, Persistent>;

  Value value;
  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
};

// At most this many nodes, and as many values and marks on the stack: a program makes one
// or none with each opcode.
inline constexpr size_t kMaxPickleNodes = size_t{1} << 24;
// Of integers in any notation.
inline constexpr size_t kMaxPickleIntegerBytes = 1024;
// Of a global's module and name together.
inline constexpr size_t kMaxPickleGlobalBytes = 1024;

struct Pickle {
  std::vector<PickleNode> nodes;
  PickleId root = 0;

  const PickleNode& operator[](PickleId id) const { return nodes[id]; }
};

struct PickleOptions {
  std::string_view where{};  // for messages: "model.pt: archive/data.pkl"
  // True for names ("collections.OrderedDict") that may occur. Python 2's __builtin__ is
  // called builtins here.
  std::function<bool(std::string_view name)> allow_global{};
};

Result<Pickle> read_pickle(ByteView bytes, const PickleOptions& options);

}  // namespace holdfast

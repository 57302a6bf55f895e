// Reads Python's pickles (protocols 0 to 5) as data, and only as data.
//
// A pickle is a program for a stack machine that can import and call anything. This
// reader has the same stack, but it neither imports nor calls anything. The name of a
// function stays a name, and a call becomes a node with the arguments that the call
// would have had. The reader of the nodes decides what such a call means.
//
// Fails with kUnsupported, naming the position, for a name that the caller does not
// allow and for an opcode that makes objects of other kinds. Fails with kCorrupt if the
// bytes are not a pickle.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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

// Nodes refer to each other by id. Several nodes may refer to the same node, and a
// hostile pickle can make cycles, so code that walks the nodes must limit depth and
// amount.
struct PickleNode {
  struct List {
    std::vector<PickleId> items;
  };
  struct Tuple {
    std::vector<PickleId> items;
  };
  // A dict, a collections.OrderedDict or a defaultdict. The attributes of an
  // OrderedDict (such as the _metadata of a state dict) and the factory of a
  // defaultdict are dropped. Keys are in order of insertion and may repeat.
  struct Dict {
    std::vector<std::pair<PickleId, PickleId>> items;
  };
  // The name of a class or function, "module.name". It is never looked up.
  struct Global {
    std::string name;
  };
  // A call that was not made, and what the pickle would have done with its result. The
  // last four are kNoPickleId if the pickle does not use them.
  struct Call {
    PickleId function = kNoPickleId;   // a Global, or another value that is called
    PickleId arguments = kNoPickleId;  // a Tuple
    PickleId keywords = kNoPickleId;   // a Dict of the arguments that have names
    PickleId state = kNoPickleId;      // attributes that would be set: usually a Dict
    PickleId items = kNoPickleId;      // a List of the values that would be appended
    PickleId entries = kNoPickleId;    // a Dict of the items that would be set
  };
  // A reference to an object outside of the pickle.
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

// Limits the number of nodes, and the number of values and marks on the stack. Each
// opcode makes at most one.
inline constexpr size_t kMaxPickleNodes = size_t{1} << 24;
// Limits the size of an integer in any notation.
inline constexpr size_t kMaxPickleIntegerBytes = 1024;
// Limits the size of a global's module and name together.
inline constexpr size_t kMaxPickleGlobalBytes = 1024;

struct Pickle {
  std::vector<PickleNode> nodes;
  PickleId root = 0;

  const PickleNode& operator[](PickleId id) const { return nodes[id]; }
};

struct PickleOptions {
  std::string_view where{};  // for messages: "model.pt: archive/data.pkl"
  // True for names ("collections.OrderedDict") that the pickle may contain. Python 2's
  // module __builtin__ is called builtins here, and its types long, unicode and xrange
  // are int, str and range.
  std::function<bool(std::string_view name)> allow_global{};
};

Result<Pickle> read_pickle(ByteView bytes, const PickleOptions& options);

// The pickle that bytes begin with.
struct FrontPickle {
  Pickle pickle{};
  size_t bytes = 0;  // of the pickle; other bytes follow
};
// Returns nullopt if the bytes end before the pickle does: more bytes are needed.
Result<std::optional<FrontPickle>> read_front_pickle(ByteView bytes,
                                                     const PickleOptions& options);

}  // namespace holdfast

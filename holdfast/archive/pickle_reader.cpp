#include "holdfast/archive/pickle_reader.h"

#include <unordered_map>

#include "holdfast/base/json_text.h"
#include "holdfast/archive/pickle_internal.h"
#include "holdfast/archive/pickle_stack_internal.h"

namespace holdfast {
namespace {

using namespace pickle;

bool is_dict(std::string_view name) {
  return name == "collections.OrderedDict" || name == "collections.defaultdict";
}

// Protocol 2, which torch.save uses, names some types as Python 2 did.
std::string_view name_in_python_3(std::string_view name) {
  if (name == "long") return "int";
  if (name == "unicode") return "str";
  if (name == "xrange") return "range";
  return name;
}

class Machine : private Stack {
 public:
  Machine(ByteView bytes, const PickleOptions& options)
      : Stack(bytes, options.where), options_(options) {}

  Result<Pickle> run() {
    Pickle pickle = HOLDFAST_TRY(run_front());
    if (program_.left() != 0) {
      return program_.broken("{} bytes follow its end", program_.left());
    }
    return pickle;
  }

  // Runs the pickle that the bytes begin with. at() is then its end.
  Result<Pickle> run_front() {
    while (true) {
      const uint8_t op = HOLDFAST_TRY(program_.next());
      if (op == kStop) break;
      HOLDFAST_TRY(step(op));
      if (nodes_.size() > kMaxPickleNodes) {
        return program_.broken("more than {} values", kMaxPickleNodes);
      }
      if (stack_.size() + marks_.size() > kMaxPickleNodes) {
        return program_.broken("more than {} values and marks on the stack",
                               kMaxPickleNodes);
      }
    }
    const PickleId root = HOLDFAST_TRY(pop());
    if (!stack_.empty() || !marks_.empty()) {
      return program_.broken("{} values are left on the stack at its end",
                             stack_.size());
    }
    return Pickle{std::move(nodes_), root};
  }

  size_t at() const { return program_.at(); }
  bool ran_out() const { return program_.ran_out(); }

 private:
  using List = PickleNode::List;
  using Tuple = PickleNode::Tuple;
  using Dict = PickleNode::Dict;
  using Global = PickleNode::Global;
  using Call = PickleNode::Call;

  // Executes one opcode. Each group of opcodes has a function that returns false for
  // opcodes of the other groups.
  Result<void> step(uint8_t op) {
    if (HOLDFAST_TRY(step_number(op)) || HOLDFAST_TRY(step_text(op)) ||
        HOLDFAST_TRY(step_container(op)) || HOLDFAST_TRY(step_memo(op)) ||
        HOLDFAST_TRY(step_object(op))) {
      return {};
    }
    return unsupported("{}: opcode {:#04x} at byte {} is not allowed", options_.where,
                       op, program_.op_at());
  }

  Result<bool> step_number(uint8_t op) {
    switch (op) {
      case kNone: return push(Object::None{});
      case kNewTrue: return push(true);
      case kNewFalse: return push(false);
      case kBinInt1:
        return push(static_cast<int64_t>(HOLDFAST_TRY(program_.number<uint8_t>())));
      case kBinInt2:
        return push(static_cast<int64_t>(HOLDFAST_TRY(program_.number<uint16_t>())));
      case kBinInt:
        return push(
            int64_t{std::bit_cast<int32_t>(HOLDFAST_TRY(program_.number<uint32_t>()))});
      case kLong1: return push_long(HOLDFAST_TRY(program_.number<uint8_t>()));
      case kLong4: return push_long(HOLDFAST_TRY(program_.number<uint32_t>()));
      case kInt:
      case kLong: return push_decimal(op);
      case kBinFloat: return push_float();
      case kFloat: return push_float_text();
      default: return false;
    }
  }

  Result<bool> step_text(uint8_t op) {
    switch (op) {
      case kShortBinString:
        return push_old_string(HOLDFAST_TRY(program_.number<uint8_t>()));
      case kBinString:
        return push_old_string(HOLDFAST_TRY(program_.number<uint32_t>()));
      case kShortBinUnicode: return push_text(HOLDFAST_TRY(program_.number<uint8_t>()));
      case kBinUnicode: return push_text(HOLDFAST_TRY(program_.number<uint32_t>()));
      case kBinUnicode8: return push_text(HOLDFAST_TRY(program_.number<uint64_t>()));
      case kUnicode: return push_line(HOLDFAST_TRY(program_.line()));
      case kString: return push_quoted(HOLDFAST_TRY(program_.line()));
      case kShortBinBytes: return push_bytes(HOLDFAST_TRY(program_.number<uint8_t>()));
      case kBinBytes: return push_bytes(HOLDFAST_TRY(program_.number<uint32_t>()));
      case kByteArray8:
      case kBinBytes8: return push_bytes(HOLDFAST_TRY(program_.number<uint64_t>()));
      default: return false;
    }
  }

  Result<bool> step_container(uint8_t op) {
    switch (op) {
      case kMark: marks_.push_back(stack_.size()); return true;
      case kEmptyTuple: return push(Tuple{});
      case kEmptyList: return push(List{});
      case kEmptyDict: return push(Dict{});
      case kTuple1: return push(Tuple{HOLDFAST_TRY(pop_many(1))});
      case kTuple2: return push(Tuple{HOLDFAST_TRY(pop_many(2))});
      case kTuple3: return push(Tuple{HOLDFAST_TRY(pop_many(3))});
      case kTuple: return push(Tuple{HOLDFAST_TRY(pop_mark())});
      case kList: return push(List{HOLDFAST_TRY(pop_mark())});
      case kDict: {
        const auto items = HOLDFAST_TRY(pop_mark());
        HOLDFAST_TRY(push(Dict{}));
        return set_items(items);
      }
      case kAppend: return append(HOLDFAST_TRY(pop_many(1)));
      case kAppends:
      case kAddItems: return append(HOLDFAST_TRY(pop_mark()));
      case kEmptySet: return push_set("set");
      case kFrozenSet: {
        const auto items = HOLDFAST_TRY(pop_mark());
        HOLDFAST_TRY(push_set("frozenset"));
        return append(items);
      }
      case kSetItem: return set_items(HOLDFAST_TRY(pop_many(2)));
      case kSetItems: return set_items(HOLDFAST_TRY(pop_mark()));
      default: return false;
    }
  }

  Result<bool> step_memo(uint8_t op) {
    switch (op) {
      case kBinPut: return put(HOLDFAST_TRY(program_.number<uint8_t>()));
      case kLongBinPut: return put(HOLDFAST_TRY(program_.number<uint32_t>()));
      case kPut: return put(HOLDFAST_TRY(index_line()));
      case kMemoize: return put(memo_.size());
      case kBinGet: return get(HOLDFAST_TRY(program_.number<uint8_t>()));
      case kLongBinGet: return get(HOLDFAST_TRY(program_.number<uint32_t>()));
      case kGet: return get(HOLDFAST_TRY(index_line()));
      case kDup: stack_.push_back(HOLDFAST_TRY(top())); return true;
      case kPopMark: HOLDFAST_TRY(pop_mark()); return true;
      case kPop:
        // As in Python, a mark on top of the stack is popped like a value.
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          HOLDFAST_TRY(pop());
        }
        return true;
      default: return false;
    }
  }

  Result<bool> step_object(uint8_t op) {
    switch (op) {
      case kProto: {
        const uint8_t version = HOLDFAST_TRY(program_.number<uint8_t>());
        if (version <= 5) return true;
        return unsupported("{}: pickle protocol {}; expected at most 5", options_.where,
                           version);
      }
      case kFrame: {
        const auto size = HOLDFAST_TRY(program_.number<uint64_t>());
        HOLDFAST_TRY(program_.check_left(size));
        return true;
      }
      case kGlobal: {
        const std::string module(HOLDFAST_TRY(program_.line()));
        return push_global(module, HOLDFAST_TRY(program_.line()));
      }
      case kStackGlobal: return stack_global();
      case kInstance: {
        const std::string module(HOLDFAST_TRY(program_.line()));
        const std::string_view name = HOLDFAST_TRY(program_.line());
        return call_at_mark(module, name);
      }
      case kObject: return call_first_at_mark();
      case kReduce:
      case kNewObject: return call(HOLDFAST_TRY(pop_many(2)));
      case kNewObjectWithKeywords: return call(HOLDFAST_TRY(pop_many(3)));
      case kBuild: return build();
      case kBinPersistent: return push(PickleNode::Persistent{HOLDFAST_TRY(pop())});
      default: return false;
    }
  }

  Result<uint64_t> index_line() {
    const std::string_view text = HOLDFAST_TRY(program_.line());
    const auto index = index_from_text(text);
    if (!index) return program_.broken("not an index of the memo; expected a number");
    return uint64_t{*index};
  }

  // Containers.

  // Returns the container of kind T on top of the stack. If a call is on top, returns
  // the container that the call has at `part`, and makes it if there is none yet.
  // Returns null if there is neither.
  template <typename T>
  Result<T*> container(PickleId Call::*part) {
    PickleId id = HOLDFAST_TRY(top());
    if (auto* call = std::get_if<Call>(&nodes_[id].value)) {
      const auto next = static_cast<PickleId>(nodes_.size());
      const bool first = call->*part == kNoPickleId;
      if (first) call->*part = next;
      id = call->*part;
      if (first) nodes_.push_back({T{}});
    }
    return std::get_if<T>(&nodes_[id].value);
  }

  Result<bool> append(const std::vector<PickleId>& items) {
    auto* list = HOLDFAST_TRY(container<List>(&Call::items));
    if (list == nullptr)
      return program_.broken("appends to a value that is not a list");
    list->items.insert(list->items.end(), items.begin(), items.end());
    return true;
  }

  Result<bool> set_items(const std::vector<PickleId>& items) {
    auto* dict = HOLDFAST_TRY(container<Dict>(&Call::entries));
    if (dict == nullptr)
      return program_.broken("sets items of a value that is not a dict");
    if (items.size() % 2 != 0) return program_.broken("a key without a value");
    for (size_t i = 0; i < items.size(); i += 2) {
      dict->items.emplace_back(items[i], items[i + 1]);
    }
    return true;
  }

  // The memo.

  Result<bool> put(uint64_t index) {
    memo_[index] = HOLDFAST_TRY(top());
    return true;
  }

  Result<bool> get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end())
      return program_.broken("the memo has no value with the number {}", index);
    stack_.push_back(found->second);
    return true;
  }

  // Names and calls.

  // Each use copies the name, and a few bytes of a pickle can use a name many times. So
  // the length of names has a limit.
  Result<bool> push_global(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > kMaxPickleGlobalBytes) {
      return unsupported("{}: a global of {} bytes at byte {}, limit {}",
                         options_.where, module.size() + name.size(), program_.op_at(),
                         kMaxPickleGlobalBytes);
    }
    if (module == "__builtin__") {
      module = "builtins";
      name = name_in_python_3(name);
    }
    std::string whole = fmt::format("{}.{}", module, name);
    if (!is_utf8(whole)) return program_.broken("text is not UTF-8");
    if (!options_.allow_global || !options_.allow_global(whole)) {
      return unsupported("{}: global \"{}\" at byte {} is not allowed", options_.where,
                         whole, program_.op_at());
    }
    return push(Global{std::move(whole)});
  }

  // A set is a call without arguments. Its elements are appended to the result of the
  // call.
  Result<bool> push_set(std::string_view kind) {
    HOLDFAST_TRY(push_global("builtins", kind));
    HOLDFAST_TRY(push(Tuple{}));
    return call(HOLDFAST_TRY(pop_many(2)));
  }

  Result<bool> stack_global() {
    const auto parts = HOLDFAST_TRY(pop_many(2));
    const auto* module = nodes_[parts[0]].as<std::string>();
    const auto* name = nodes_[parts[1]].as<std::string>();
    if (module == nullptr || name == nullptr)
      return program_.broken("a global has no name");
    // Copies the names, because nodes_ moves its elements when a node is pushed.
    return push_global(std::string(*module), std::string(*name));
  }

  // `parts` are a function, its arguments, and perhaps its arguments with names.
  Result<bool> call(const std::vector<PickleId>& parts) {
    const auto* function = nodes_[parts[0]].as<Global>();
    const auto* arguments = nodes_[parts[1]].as<Tuple>();
    const PickleId keywords = parts.size() > 2 ? parts[2] : kNoPickleId;
    if (arguments == nullptr ||
        (keywords != kNoPickleId && nodes_[keywords].as<Dict>() == nullptr)) {
      return program_.broken("calls {} with arguments that are not a tuple",
                             function == nullptr ? "a value" : function->name);
    }
    // Python 3 makes such a dict empty and sets its items afterwards.
    const bool dict = function != nullptr && is_dict(function->name);
    if (dict && arguments->items.size() < 2) return push(Dict{});
    return push(
        Call{.function = parts[0], .arguments = parts[1], .keywords = keywords});
  }

  // Protocols 0 and 1 put a mark, the class unless the opcode names it, and the
  // arguments on the stack.
  Result<bool> call_at_mark(std::string_view module, std::string_view name) {
    HOLDFAST_TRY(push(Tuple{HOLDFAST_TRY(pop_mark())}));
    const PickleId arguments = HOLDFAST_TRY(pop());
    HOLDFAST_TRY(push_global(module, name));
    return call({HOLDFAST_TRY(pop()), arguments});
  }

  Result<bool> call_first_at_mark() {
    auto items = HOLDFAST_TRY(pop_mark());
    if (items.empty()) return program_.broken("calls nothing");
    const PickleId function = items.front();
    items.erase(items.begin());
    HOLDFAST_TRY(push(Tuple{std::move(items)}));
    return call({function, HOLDFAST_TRY(pop())});
  }

  // Sets attributes of the value on top of the stack. Attributes of an OrderedDict are
  // dropped. Only calls can have other attributes.
  Result<bool> build() {
    const PickleId state = HOLDFAST_TRY(pop());
    PickleNode& node = nodes_[HOLDFAST_TRY(top())];
    if (node.as<Dict>() != nullptr) return true;
    auto* call = std::get_if<Call>(&node.value);
    if (call != nullptr && call->state == kNoPickleId) {
      call->state = state;
      return true;
    }
    return unsupported("{}: byte {}: sets attributes of a value that has none",
                       options_.where, program_.op_at());
  }

  const PickleOptions& options_;
  std::unordered_map<uint64_t, PickleId> memo_;
};

}  // namespace

Result<Pickle> read_pickle(ByteView bytes, const PickleOptions& options) {
  return Machine(bytes, options).run();
}

Result<std::optional<FrontPickle>> read_front_pickle(ByteView bytes,
                                                     const PickleOptions& options) {
  Machine machine(bytes, options);
  Result<Pickle> pickle = machine.run_front();
  if (!pickle.ok() && machine.ran_out()) return std::optional<FrontPickle>();
  return std::optional(
      FrontPickle{HOLDFAST_TRY(std::move(pickle)), machine.at()});
}

}  // namespace holdfast

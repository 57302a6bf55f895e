#include "holdfast/formats/pickle_reader.h"

#include <bit>
#include <charconv>
#include <unordered_map>

#include "holdfast/base/json_text.h"
#include "holdfast/formats/pickle_internal.h"

namespace holdfast {
namespace {

using namespace pickle;

constexpr std::string_view kOrderedDict = "collections.OrderedDict";

class Machine {
 public:
  Machine(ByteView bytes, const PickleOptions& options)
      : program_(bytes, options.where), options_(options) {}

  Result<Pickle> run() {
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
      return program_.broken("{} values are left behind its end", stack_.size());
    }
    if (program_.left() != 0) {
      return program_.broken("{} bytes follow its end", program_.left());
    }
    return Pickle{std::move(nodes_), root};
  }

 private:
  using List = PickleNode::List;
  using Tuple = PickleNode::Tuple;
  using Dict = PickleNode::Dict;
  using Global = PickleNode::Global;

  // One opcode. The groups know their own opcodes and answer false for others.
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
      case kShortBinUnicode: return push_text(HOLDFAST_TRY(program_.number<uint8_t>()));
      case kBinString:
      case kBinUnicode: return push_text(HOLDFAST_TRY(program_.number<uint32_t>()));
      case kBinUnicode8: return push_text(HOLDFAST_TRY(program_.number<uint64_t>()));
      case kUnicode: return push_line(HOLDFAST_TRY(program_.line()));
      case kString: return push_quoted(HOLDFAST_TRY(program_.line()));
      case kShortBinBytes: return push_bytes(HOLDFAST_TRY(program_.number<uint8_t>()));
      case kBinBytes: return push_bytes(HOLDFAST_TRY(program_.number<uint32_t>()));
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
      case kAppends: return append(HOLDFAST_TRY(pop_mark()));
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
        // As in Python: a mark on top is popped like a value.
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
        return unsupported("{}: pickle protocol {}, want at most 5", options_.where,
                           version);
      }
      case kFrame: {
        const auto size = HOLDFAST_TRY(program_.number<uint64_t>());
        if (size <= program_.left()) return true;
        return program_.broken("a frame of {} bytes, {} are left", size,
                               program_.left());
      }
      case kGlobal: {
        const std::string module(HOLDFAST_TRY(program_.line()));
        return push_global(module, HOLDFAST_TRY(program_.line()));
      }
      case kStackGlobal: return stack_global();
      case kReduce:
      case kNewObject: return call();
      case kBuild: return build();
      case kBinPersistent: return push(PickleNode::Persistent{HOLDFAST_TRY(pop())});
      default: return false;
    }
  }

  Result<uint64_t> index_line() {
    const std::string_view text = HOLDFAST_TRY(program_.line());
    uint32_t index = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), index);
    if (error != std::errc{} || end != text.data() + text.size()) {
      return program_.broken("no index of the memo");
    }
    return uint64_t{index};
  }

  // The stack. Nothing below the last mark can be reached.

  Result<bool> push(PickleNode::Value value) {
    stack_.push_back(static_cast<PickleId>(nodes_.size()));
    nodes_.push_back({std::move(value)});
    return true;
  }

  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }

  Result<PickleId> top() const {
    if (stack_.size() <= bottom()) return program_.broken("the stack is empty");
    return stack_.back();
  }

  Result<PickleId> pop() {
    const PickleId id = HOLDFAST_TRY(top());
    stack_.pop_back();
    return id;
  }

  Result<std::vector<PickleId>> pop_many(size_t count) {
    if (stack_.size() - bottom() < count) {
      return program_.broken("{} values wanted, the stack has {}", count,
                             stack_.size() - bottom());
    }
    const auto first = stack_.end() - static_cast<ptrdiff_t>(count);
    std::vector<PickleId> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    return items;
  }

  Result<std::vector<PickleId>> pop_mark() {
    if (marks_.empty()) return program_.broken("no mark on the stack");
    auto items = HOLDFAST_TRY(pop_many(stack_.size() - marks_.back()));
    marks_.pop_back();
    return items;
  }

  // Numbers and text.

  Result<bool> push_integer(const Object& integer) {
    if (const auto* small = integer.as<int64_t>()) return push(*small);
    return push(*integer.as<Object::BigInteger>());
  }

  Result<bool> push_long(uint64_t count) {
    const ByteView digits = HOLDFAST_TRY(program_.take(count));
    if (count > kMaxPickleIntegerBytes) {
      return unsupported("{}: byte {}: an integer of {} bytes, limit {}",
                         options_.where, program_.op_at(), count,
                         kMaxPickleIntegerBytes);
    }
    return push_integer(integer_from_bytes(digits));
  }

  Result<bool> push_decimal(uint8_t op) {
    std::string_view text = HOLDFAST_TRY(program_.line());
    if (op == kInt && (text == "00" || text == "01")) return push(text == "01");
    if (op == kLong && text.ends_with('L')) text.remove_suffix(1);
    const auto integer = integer_from_decimal(text);
    if (!integer || text.size() > 2 * kMaxPickleIntegerBytes) {
      return program_.broken("no integer");
    }
    return push_integer(*integer);
  }

  Result<bool> push_float() {
    const ByteView bytes = HOLDFAST_TRY(program_.take(8));
    uint64_t bits = 0;  // the one number of pickle that is big-endian
    for (const std::byte byte : bytes) {
      bits = (bits << 8) | std::to_integer<uint64_t>(byte);
    }
    return push(std::bit_cast<double>(bits));
  }

  Result<bool> push_float_text() {
    const std::string_view text = HOLDFAST_TRY(program_.line());
    double value = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
      return program_.broken("no number");
    }
    return push(value);
  }

  Result<bool> push_string(std::string_view text) {
    if (!is_utf8(text)) return program_.broken("text that is not UTF-8");
    return push(std::string(text));
  }

  Result<bool> push_text(uint64_t count) {
    return push_string(text_of(HOLDFAST_TRY(program_.take(count))));
  }

  // Protocol 0 escapes what is not plain; plain text is all that names need.
  Result<bool> push_line(std::string_view text) {
    for (const char c : text) {
      if (c == '\\' || static_cast<unsigned char>(c) >= 0x80) {
        return unsupported("{}: byte {}: escaped text of protocol 0", options_.where,
                           program_.op_at());
      }
    }
    return push(std::string(text));
  }

  Result<bool> push_quoted(std::string_view text) {
    const bool quoted = text.size() >= 2 && text.front() == text.back() &&
                        (text.front() == '\'' || text.front() == '"');
    if (!quoted) return program_.broken("text without quotes");
    return push_line(text.substr(1, text.size() - 2));
  }

  Result<bool> push_bytes(uint64_t count) {
    return push(copy_of(HOLDFAST_TRY(program_.take(count))));
  }

  // Containers.

  Result<bool> append(const std::vector<PickleId>& items) {
    auto* list = std::get_if<List>(&nodes_[HOLDFAST_TRY(top())].value);
    if (list == nullptr) return program_.broken("appends to what is no list");
    list->items.insert(list->items.end(), items.begin(), items.end());
    return true;
  }

  Result<bool> set_items(const std::vector<PickleId>& items) {
    auto* dict = std::get_if<Dict>(&nodes_[HOLDFAST_TRY(top())].value);
    if (dict == nullptr) return program_.broken("sets items of what is no dict");
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
      return program_.broken("nothing has number {} in the memo", index);
    stack_.push_back(found->second);
    return true;
  }

  // Names and calls.

  // Each use copies the names, which a few bytes can ask for: they have to be short.
  Result<bool> push_global(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > kMaxPickleGlobalBytes) {
      return unsupported("{}: a global of {} bytes at byte {}, limit {}",
                         options_.where, module.size() + name.size(), program_.op_at(),
                         kMaxPickleGlobalBytes);
    }
    if (module == "__builtin__") module = "builtins";
    std::string whole = fmt::format("{}.{}", module, name);
    if (!is_utf8(whole)) return program_.broken("text that is not UTF-8");
    if (!options_.allow_global || !options_.allow_global(whole)) {
      return unsupported("{}: global \"{}\" at byte {} is not allowed", options_.where,
                         whole, program_.op_at());
    }
    return push(Global{std::move(whole)});
  }

  Result<bool> stack_global() {
    const auto parts = HOLDFAST_TRY(pop_many(2));
    const auto* module = nodes_[parts[0]].as<std::string>();
    const auto* name = nodes_[parts[1]].as<std::string>();
    if (module == nullptr || name == nullptr)
      return program_.broken("a global without a name");
    // Copies: the nodes move when one is pushed.
    return push_global(std::string(*module), std::string(*name));
  }

  Result<bool> call() {
    const auto parts = HOLDFAST_TRY(pop_many(2));
    const auto* function = nodes_[parts[0]].as<Global>();
    const auto* arguments = nodes_[parts[1]].as<Tuple>();
    if (function == nullptr) return program_.broken("calls what is no global");
    if (arguments == nullptr)
      return program_.broken("calls {} without a tuple", function->name);
    // Python 3 makes them empty and sets their items afterwards.
    if (function->name == kOrderedDict && arguments->items.empty()) return push(Dict{});
    return push(PickleNode::Call{parts[0], parts[1]});
  }

  // Attributes of an OrderedDict are dropped; other objects have none here.
  Result<bool> build() {
    HOLDFAST_TRY(pop());
    if (nodes_[HOLDFAST_TRY(top())].as<Dict>() != nullptr) return true;
    return unsupported("{}: byte {}: gives attributes to what is no dict",
                       options_.where, program_.op_at());
  }

  Program program_;
  const PickleOptions& options_;
  std::vector<PickleNode> nodes_;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleId> memo_;
};

}  // namespace

Result<Pickle> read_pickle(ByteView bytes, const PickleOptions& options) {
  return Machine(bytes, options).run();
}

}  // namespace holdfast

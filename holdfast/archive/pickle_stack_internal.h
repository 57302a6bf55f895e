// The stack of the machine that reads pickles (pickle_reader.cpp), with the program
// that it runs and the nodes that it makes. It pushes the program's numbers and texts.
#pragma once

#include <vector>

#include "holdfast/archive/pickle_internal.h"
#include "holdfast/archive/pickle_reader.h"
#include "holdfast/base/json_text.h"

namespace holdfast::pickle {

// Values below the last mark cannot be reached.
class Stack {
 protected:
  Stack(ByteView bytes, std::string_view where) : program_(bytes, where) {}

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
      return program_.broken("needs {} values; the stack has {}", count,
                             stack_.size() - bottom());
    }
    const auto first = stack_.end() - static_cast<ptrdiff_t>(count);
    std::vector<PickleId> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    return items;
  }

  Result<std::vector<PickleId>> pop_mark() {
    if (marks_.empty()) return program_.broken("the stack has no mark");
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
    const ByteView digits = HOLDFAST_TRY(program_.read(count));
    if (count > kMaxPickleIntegerBytes) {
      return unsupported("{}: byte {}: an integer of {} bytes, limit {}",
                         program_.where(), program_.op_at(), count,
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
      return program_.broken("not an integer; expected decimal digits");
    }
    return push_integer(*integer);
  }

  Result<bool> push_float() {
    return push(double_from_bytes(HOLDFAST_TRY(program_.read(8))));
  }

  Result<bool> push_float_text() {
    const auto number = double_from_text(HOLDFAST_TRY(program_.line()));
    return number ? push(*number) : program_.broken("not a number; expected one");
  }

  Result<bool> push_string(std::string_view text) {
    if (!is_utf8(text)) return program_.broken("text is not UTF-8");
    return push(std::string(text));
  }

  Result<bool> push_text(uint64_t count) {
    return push_string(text_of(HOLDFAST_TRY(program_.read(count))));
  }

  // The strings of Python 2 are text or bytes.
  Result<bool> push_old_string(uint64_t count) {
    const ByteView bytes = HOLDFAST_TRY(program_.read(count));
    if (!is_utf8(text_of(bytes))) return push(copy_of(bytes));
    return push(std::string(text_of(bytes)));
  }

  // Protocol 0 escapes characters that are not plain. Names need only plain text, so
  // escapes are not supported.
  Result<bool> push_line(std::string_view text) {
    if (is_plain_line(text)) return push(std::string(text));
    return unsupported(
        "{}: byte {}: text of protocol 0 has escapes, which are not supported",
        program_.where(), program_.op_at());
  }

  Result<bool> push_quoted(std::string_view text) {
    const bool quoted = text.size() >= 2 && text.front() == text.back() &&
                        (text.front() == '\'' || text.front() == '"');
    if (!quoted) return program_.broken("text has no quotes");
    return push_line(text.substr(1, text.size() - 2));
  }

  Result<bool> push_bytes(uint64_t count) {
    return push(copy_of(HOLDFAST_TRY(program_.read(count))));
  }

  Program program_;
  std::vector<PickleNode> nodes_;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;
};

}  // namespace holdfast::pickle

// The stack of the machine that reads pickles (pickle_reader.cpp), with the program
// that it runs and the nodes that it makes.
#pragma once

#include <vector>

#include "holdfast/archive/pickle_internal.h"
#include "holdfast/archive/pickle_reader.h"

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

  Program program_;
  std::vector<PickleNode> nodes_;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;
};

}  // namespace holdfast::pickle

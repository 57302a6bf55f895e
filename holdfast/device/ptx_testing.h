// Runs the kernels of this folder, which are PTX text, on the CPU: so that the text itself
// is tested on machines without a GPU. Knows the instructions that these kernels use, and
// aborts at others. Device memory is host memory. Only for *_test.cpp.
//
// All threads of a block run one after the other, each until it must wait for others at a
// shuffle or a barrier.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"

namespace holdfast {

struct PtxGrid {
  unsigned x = 1;
  unsigned y = 1;
  unsigned threads = 256;
};

class PtxKernel {
 public:
  explicit PtxKernel(const std::string& text) {
    const size_t open = text.find('{');
    read_parameters(text.substr(text.find('('), open - text.find('(')));
    read_body(text.substr(open + 1, text.rfind('}') - open - 1));
  }

  // `parameters` are those of a launch, one behind the other, each aligned to 8 bytes.
  void run(const PtxGrid& grid, ByteView parameters) {
    HOLDFAST_CHECK(parameters.size() == parameter_bytes_, "{} bytes of parameters",
                   parameters.size());
    parameters_ = copy_of(parameters);
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) run_block(grid, x, y);
    }
  }

 private:
  static constexpr size_t kWarp = 32;

  struct Operand {
    enum class Kind { kNumber, kRegister, kSpecial, kSymbol, kVector };
    Kind kind = Kind::kNumber;
    uint64_t number = 0;  // or the register, or the displacement of an address
    std::string name{};   // of what is special, or of a symbol
    std::vector<size_t> members{};
    bool displaced = false;
  };
  enum class Action { kJump, kEnd, kShuffle, kWait, kTransfer, kCompute };
  using Inputs = std::array<uint64_t, 4>;
  struct Instruction {
    int predicate = -1;
    bool negated = false;
    std::vector<std::string> words{};  // "setp", "lt", "and", "u64"
    std::vector<Operand> operands{};
    std::string label{};
    size_t target = 0;  // of a jump
    Action action = Action::kCompute;
    size_t size = 0;  // of its type, in bytes
    uint64_t (*compute)(const Instruction&, const Inputs&) = nullptr;
  };
  enum class State { kRuns, kShuffles, kWaits, kDone };
  struct Thread {
    std::map<std::string_view, uint64_t> special{};
    std::vector<uint64_t> registers{};
    size_t at = 0;
    State state = State::kRuns;
  };

  static std::string trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\n");
    if (first == std::string_view::npos) return {};
    return std::string(text.substr(first, text.find_last_not_of(" \t\n") - first + 1));
  }
  static std::vector<std::string> split(std::string_view text, char by) {
    std::vector<std::string> parts;
    int depth = 0;
    std::string part;
    for (const char c : text) {
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      if (c == by && depth == 0) {
        parts.push_back(trimmed(part));
        part.clear();
      } else {
        part.push_back(c);
      }
    }
    if (!trimmed(part).empty()) parts.push_back(trimmed(part));
    return parts;
  }
  static size_t array_size(std::string_view declaration) {
    const auto open = declaration.find('[');
    return open == std::string_view::npos ? 8
                                          : std::stoul(std::string(declaration.substr(
                                                open + 1, declaration.find(']') - open - 1)));
  }
  static std::string name_in(const std::string& declaration) {
    const std::string last = declaration.substr(declaration.rfind(' ') + 1);
    return last.substr(0, last.find('['));
  }

  void read_parameters(std::string_view text) {
    text = text.substr(1, text.rfind(')') - 1);
    for (const std::string& one : split(text, ',')) {
      parameter_at_[name_in(one)] = parameter_bytes_;
      parameter_bytes_ += (array_size(one) + 7) / 8 * 8;
    }
  }

  void read_body(std::string_view text) {
    for (std::string one : split(replace_labels(text), ';')) {
      while (one.starts_with("$")) {
        labels_[one.substr(1, one.find('$', 1) - 1)] = code_.size();
        one = trimmed(std::string_view(one).substr(one.find('$', 1) + 1));
      }
      if (one.empty() || one.starts_with(".reg")) continue;
      if (one.starts_with(".shared")) {
        shared_at_[name_in(one)] = shared_.size();
        shared_.resize(shared_.size() + array_size(one));
        continue;
      }
      code_.push_back(read_instruction(one));
    }
    for (Instruction& one : code_) {
      if (one.action == Action::kJump) one.target = labels_.at(one.label);
    }
  }
  // "name:" becomes "$name$".
  static std::string replace_labels(std::string_view text) {
    std::string out;
    for (const std::string& line : split(text, '\n')) {
      out += line.ends_with(':') ? "$" + line.substr(0, line.size() - 1) + "$" : line;
      out += '\n';
    }
    return out;
  }

  Instruction read_instruction(std::string text) {
    Instruction read;
    if (text.starts_with("@")) {
      read.negated = text[1] == '!';
      const size_t end = text.find(' ');
      read.predicate =
          static_cast<int>(register_of(text.substr(read.negated ? 2 : 1, end - (read.negated ? 2 : 1))));
      text = trimmed(std::string_view(text).substr(end));
    }
    const size_t end = std::min(text.find(' '), text.size());
    read.words = split(text.substr(0, end), '.');
    const std::string rest = trimmed(std::string_view(text).substr(end));
    if (read.words[0] == "bra") {
      read.label = rest;
      read.action = Action::kJump;
      return read;
    }
    for (const std::string& one : split(rest, ',')) {
      read.operands.push_back(read_operand(one));
    }
    read.action = action_of(read.words[0]);
    if (read.action == Action::kTransfer || read.action == Action::kCompute) {
      read.size = size_of(read.words.back());
    }
    if (read.action == Action::kCompute) read.compute = function_of(read.words);
    return read;
  }
  static Action action_of(std::string_view word) {
    if (word == "ret") return Action::kEnd;
    if (word == "shfl") return Action::kShuffle;
    if (word == "bar") return Action::kWait;
    return word == "ld" || word == "st" ? Action::kTransfer : Action::kCompute;
  }

  Operand read_operand(std::string text) {
    using Kind = Operand::Kind;
    if (text.starts_with("[")) {
      text = trimmed(text.substr(1, text.size() - 2));
      const size_t plus = text.find('+');
      Operand base = read_operand(text.substr(0, plus));
      if (plus != std::string::npos) {
        base.members = {std::stoul(text.substr(plus + 1))};
        base.displaced = true;
      }
      return base;
    }
    if (text.starts_with("{")) {
      Operand vector{.kind = Kind::kVector};
      for (const std::string& one : split(text.substr(1, text.size() - 2), ',')) {
        vector.members.push_back(register_of(one));
      }
      return vector;
    }
    if (text.starts_with("%") && text.find('.') != std::string::npos) {
      return {.kind = Kind::kSpecial, .name = text};
    }
    if (text.starts_with("%")) {
      return {.kind = Kind::kRegister, .number = register_of(text)};
    }
    if (std::isdigit(text[0]) == 0 && text[0] != '-') {
      return {.kind = Kind::kSymbol, .name = text};
    }
    const bool negative = text[0] == '-';
    const uint64_t number = std::stoull(text.substr(negative ? 1 : 0), nullptr, 0);
    return {.kind = Kind::kNumber, .number = negative ? 0 - number : number};
  }

  size_t register_of(const std::string& name) {
    return registers_.emplace(name, registers_.size()).first->second;
  }

  void run_block(const PtxGrid& grid, unsigned x, unsigned y) {
    std::vector<Thread> threads(grid.threads);
    for (unsigned t = 0; t < grid.threads; ++t) {
      threads[t].special = {{"%tid.x", t},     {"%ntid.x", grid.threads}, {"%ctaid.x", x},
                            {"%ctaid.y", y},   {"%nctaid.x", grid.x},     {"%nctaid.y", grid.y}};
      // Registers have any contents when a thread begins.
      threads[t].registers.assign(registers_.size(), 0xdeadbeefdeadbeefU);
    }
    std::ranges::fill(shared_, std::byte{0xdd});
    while (true) {
      for (Thread& thread : threads) {
        while (thread.state == State::kRuns) step(thread);
      }
      if (all_are(threads, State::kDone)) return;
      bool went_on = false;
      for (size_t first = 0; first < threads.size(); first += kWarp) {
        went_on |= shuffle(std::span(threads).subspan(first, kWarp));
      }
      if (went_on) continue;
      HOLDFAST_CHECK(all_are(threads, State::kWaits), "threads wait for each other");
      for (Thread& thread : threads) resume(thread);
    }
  }
  static bool all_are(std::span<const Thread> threads, State state) {
    return std::ranges::all_of(threads,
                               [&](const Thread& one) { return one.state == state; });
  }
  static void resume(Thread& thread) {
    thread.state = State::kRuns;
    ++thread.at;
  }

  // Makes a shuffle if all threads of the warp have come to it.
  bool shuffle(std::span<Thread> warp) {
    if (!all_are(warp, State::kShuffles)) return false;
    std::vector<uint64_t> got;
    for (size_t lane = 0; lane < warp.size(); ++lane) {
      HOLDFAST_CHECK(warp[lane].at == warp[0].at, "two shuffles at once");
      const Instruction& one = code_[warp[lane].at];
      const uint64_t given = value(warp[lane], one.operands[2]);
      size_t from = one.words[2] == "idx" ? given : lane + given;
      if (from >= kWarp) from = lane;
      got.push_back(value(warp[from], code_[warp[from].at].operands[1]) & 0xffffffffU);
    }
    for (size_t lane = 0; lane < warp.size(); ++lane) {
      warp[lane].registers[code_[warp[lane].at].operands[0].number] = got[lane];
      resume(warp[lane]);
    }
    return true;
  }

  uint64_t value(const Thread& thread, const Operand& operand) const {
    using Kind = Operand::Kind;
    switch (operand.kind) {
      case Kind::kNumber: return operand.number;
      case Kind::kRegister: return thread.registers[operand.number];
      case Kind::kSpecial: return thread.special.at(operand.name);
      case Kind::kVector:
        return (thread.registers[operand.members[0]] & 0xffffffffU) |
               thread.registers[operand.members[1]] << 32;
      case Kind::kSymbol: break;
    }
    if (const auto found = shared_at_.find(operand.name); found != shared_at_.end()) {
      return reinterpret_cast<uint64_t>(shared_.data() + found->second);
    }
    return reinterpret_cast<uint64_t>(parameters_.data() + parameter_at_.at(operand.name));
  }
  std::byte* address(const Thread& thread, const Operand& operand) const {
    const uint64_t base = value(thread, operand);
    return reinterpret_cast<std::byte*>(base +
                                        (operand.displaced ? operand.members[0] : 0));
  }

  // The size in bytes that a type's name says: "u64".
  static size_t size_of(std::string_view type) {
    return std::stoul(std::string(type.substr(1))) / 8;
  }
  static uint64_t cut(uint64_t number, size_t bytes) {
    return bytes >= 8 ? number : number & ((uint64_t{1} << (8 * bytes)) - 1);
  }

  void step(Thread& thread) {
    const Instruction& one = code_[thread.at];
    if (one.predicate >= 0 &&
        (thread.registers[static_cast<size_t>(one.predicate)] != 0) == one.negated) {
      ++thread.at;
      return;
    }
    switch (one.action) {
      case Action::kJump: thread.at = one.target; return;
      case Action::kEnd: thread.state = State::kDone; return;
      case Action::kShuffle: thread.state = State::kShuffles; return;
      case Action::kWait: thread.state = State::kWaits; return;
      case Action::kTransfer: transfer(thread, one); break;
      case Action::kCompute: compute(thread, one); break;
    }
    ++thread.at;
  }

  void transfer(Thread& thread, const Instruction& one) {
    const bool load = one.words[0] == "ld";
    const Operand& data = one.operands[load ? 0 : 1];
    std::byte* const at = address(thread, one.operands[load ? 1 : 0]);
    const bool vector = data.kind == Operand::Kind::kVector;
    const size_t count = vector ? data.members.size() : 1;
    HOLDFAST_CHECK(reinterpret_cast<uint64_t>(at) % (one.size * count) == 0,
                   "an address that is not aligned");
    for (size_t i = 0; i < count; ++i) {
      uint64_t& held = thread.registers[vector ? data.members[i] : data.number];
      if (load) {
        held = 0;
        std::memcpy(&held, at + i * one.size, one.size);
      } else {
        std::memcpy(at + i * one.size, &held, one.size);
      }
    }
  }

  void compute(Thread& thread, const Instruction& one) {
    const Operand& to = one.operands[0];
    if (to.kind == Operand::Kind::kVector) {
      const uint64_t whole = value(thread, one.operands[1]);
      thread.registers[to.members[0]] = whole & 0xffffffffU;
      thread.registers[to.members[1]] = whole >> 32;
      return;
    }
    Inputs in{};
    for (size_t i = 1; i < one.operands.size(); ++i) {
      in[i - 1] = value(thread, one.operands[i]);
    }
    thread.registers[to.number] = one.compute(one, in);
  }

  // The function that computes an instruction. Its inputs are cut to the size of the type
  // first, but for predicates, distances of shifts and what a wide product is added to.
  static uint64_t (*function_of(const std::vector<std::string>& words))(const Instruction&,
                                                                        const Inputs&) {
    using I = const Instruction&;
    using V = const Inputs&;
    const std::string& what = words[0];
    if (what == "cvt") {
      return [](I i, V v) { return cut(cut(v[0], i.size), size_of(i.words[1])); };
    }
    if (what == "mov") return [](I i, V v) { return cut(v[0], i.size); };
    if (what == "setp") {
      return [](I i, V v) {
        return uint64_t{compare(i.words[1], cut(v[0], i.size), cut(v[1], i.size)) &&
                        (i.operands.size() < 4 || v[2] != 0)};
      };
    }
    if (what == "selp") return [](I i, V v) { return cut(v[v[2] != 0 ? 0 : 1], i.size); };
    if (words[1] == "wide") {
      return [](I i, V v) { return cut(v[0], i.size) * cut(v[1], i.size) + v[2]; };
    }
    if (what == "mul") return [](I i, V v) { return cut(v[0] * v[1], i.size); };
    if (what == "mad") return [](I i, V v) { return cut(v[0] * v[1] + v[2], i.size); };
    if (what == "add") return [](I i, V v) { return cut(v[0] + v[1], i.size); };
    if (what == "sub") return [](I i, V v) { return cut(v[0] - v[1], i.size); };
    if (what == "div") {
      return [](I i, V v) { return cut(v[0], i.size) / cut(v[1], i.size); };
    }
    if (what == "rem") {
      return [](I i, V v) { return cut(v[0], i.size) % cut(v[1], i.size); };
    }
    if (what == "and") return [](I i, V v) { return cut(v[0] & v[1], i.size); };
    if (what == "or") return [](I i, V v) { return cut(v[0] | v[1], i.size); };
    if (what == "xor") return [](I i, V v) { return cut(v[0] ^ v[1], i.size); };
    if (what == "min") {
      return [](I i, V v) { return std::min(cut(v[0], i.size), cut(v[1], i.size)); };
    }
    if (what == "shl") return [](I i, V v) { return cut(v[0] << v[1], i.size); };
    HOLDFAST_CHECK(what == "shr", "{}: no such instruction", what);
    return [](I i, V v) { return cut(v[0], i.size) >> v[1]; };
  }
  // All comparisons of the kernels are unsigned.
  static bool compare(std::string_view how, uint64_t a, uint64_t b) {
    if (how == "eq") return a == b;
    if (how == "ne") return a != b;
    if (how == "lt") return a < b;
    if (how == "le") return a <= b;
    if (how == "gt") return a > b;
    HOLDFAST_CHECK(how == "ge", "{}: no such comparison", how);
    return a >= b;
  }

  std::map<std::string, size_t> parameter_at_;
  size_t parameter_bytes_ = 0;
  std::map<std::string, size_t> shared_at_;
  std::map<std::string, size_t> labels_;
  std::map<std::string, size_t> registers_;
  std::vector<Instruction> code_;
  Bytes parameters_;
  Bytes shared_;
};

}  // namespace holdfast

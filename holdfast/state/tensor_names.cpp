#include "holdfast/state/tensor_names.h"

#include <algorithm>
#include <array>
#include <vector>

namespace holdfast {
namespace {

constexpr std::string_view kSeparators = "./";
constexpr auto kNone = std::string_view::npos;

bool is_separator(char c) { return kSeparators.find(c) != kNone; }

bool is_same(char a, char b) { return a == b || (is_separator(a) && is_separator(b)); }

std::string_view without_root(std::string_view name) {
  return name.starts_with('/') ? name.substr(1) : name;
}

// Whether the pattern matches the name up to its end or to a separator. If the rest does
// not match, only the last '*' is tried with more characters, because an earlier one with
// more characters would match nothing else.
bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = kNone, mark = 0;
  while (true) {
    if (p == pattern.size() && (n == name.size() || is_separator(name[n]))) return true;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = n;
    } else if (p < pattern.size() && n < name.size() &&
               (pattern[p] == '?' || is_same(pattern[p], name[n]))) {
      ++p, ++n;
    } else if (star != kNone && mark < name.size()) {
      p = star + 1;
      n = ++mark;
    } else {
      return false;
    }
  }
}

std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  while (!name.empty()) {
    const size_t end = std::min(name.find_first_of(kSeparators), name.size());
    if (end > 0) parts.push_back(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return parts;
}

template <size_t kCount>
bool is_one_of(std::string_view word,
               const std::array<std::string_view, kCount>& words) {
  return std::ranges::find(words, word) != words.end();
}

// The last parts of names, by torch, Keras and TensorFlow, and Chainer.
constexpr std::array<std::string_view, 7> kBuffers{
    "running_mean", "running_var", "moving_mean", "moving_variance",
    "avg_mean",     "avg_var",     "moving_var"};
constexpr std::array<std::string_view, 7> kCounters{
    "num_batches_tracked", "step",        "steps", "iteration",
    "iterations",          "global_step", "epoch"};
constexpr std::array<std::string_view, 7> kSlots{
    "exp_avg",    "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer",
    "square_avg", "grad_avg",   "acc_delta"};
constexpr std::array<std::string_view, 4> kMasters{"master", "master_param",
                                                   "fp32_param", "master_weights"};
// Names of slots that are too short to tell a slot alone. They stand below the name of a
// parameter, as in Chainer's "conv1/W/v", or in an optimizer.
constexpr std::array<std::string_view, 5> kShortSlots{"m", "v", "sum", "momentum",
                                                      "velocity"};
constexpr std::array<std::string_view, 7> kParameters{"W",    "b",     "weight", "bias",
                                                      "beta", "gamma", "kernel"};
// Parts that say that everything below belongs to an optimizer.
constexpr std::array<std::string_view, 4> kOptimizers{"optimizer", "optim", "opt",
                                                      "OPTIMIZER_SLOT"};

bool is_slot(const std::vector<std::string_view>& parts) {
  if (is_one_of(parts.back(), kSlots)) return true;
  return parts.size() > 1 && is_one_of(parts.back(), kShortSlots) &&
         is_one_of(parts[parts.size() - 2], kParameters);
}

Role role_by_name(const Tensor& tensor) {
  std::vector<std::string_view> parts = parts_of(tensor.name);
  // TensorFlow ends the names of variables with these parts.
  while (!parts.empty() &&
         (parts.back() == "VARIABLE_VALUE" || parts.back() == "ATTRIBUTES")) {
    parts.pop_back();
  }
  if (parts.empty()) return Role::kParameter;
  const std::string_view last = parts.back();
  const bool optimizer = std::ranges::any_of(
      parts, [](std::string_view part) { return is_one_of(part, kOptimizers); });
  const bool scalar = tensor.shape.elements() == 1;
  const bool whole_number = info(tensor.dtype).exponent_bits == 0;
  if (is_one_of(last, kBuffers)) return Role::kBuffer;
  if (scalar && is_one_of(last, kCounters)) return Role::kCounter;
  if (is_one_of(last, kMasters)) return Role::kMaster;
  if (is_slot(parts)) return Role::kSlot;
  if (optimizer) return scalar ? Role::kCounter : Role::kSlot;
  return scalar && whole_number ? Role::kCounter : Role::kParameter;
}

}  // namespace

bool selects(std::string_view pattern, std::string_view name) {
  return matches(without_root(pattern), without_root(name));
}

Role role_of(const Tensor& tensor) {
  return tensor.role == Role::kParameter ? role_by_name(tensor) : tensor.role;
}

std::string_view layer_of(std::string_view name) {
  const size_t end = name.find_last_of(kSeparators);
  return end == kNone ? std::string_view() : name.substr(0, end);
}

}  // namespace holdfast

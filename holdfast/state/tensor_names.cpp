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
constexpr std::array<std::string_view, 9> kBuffers{
    "running_mean", "running_var", "moving_mean", "moving_variance", "avg_mean",
    "avg_var",      "moving_var",  "adapt_mean",  "adapt_variance"};
constexpr std::array<std::string_view, 10> kCounters{
    "num_batches_tracked", "step",        "steps",         "iteration",   "iterations",
    "global_step",         "epoch",       "learning_rate", "beta1_power", "beta2_power"};
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
constexpr std::array<std::string_view, 5> kOptimizers{
    "optimizer", "optim", "opt", "OPTIMIZER_SLOT", "optimizer_weights"};
// What TensorFlow 1 puts behind the name of a variable for the slots of its optimizers.
constexpr std::array<std::string_view, 7> kOlderSlots{
    "Adam", "Adam_1", "Momentum", "RMSProp", "RMSProp_1", "Adagrad", "Adadelta"};
// The bytes of the state of torch's generator for the CPU.
constexpr int64_t kTorchGeneratorBytes = 5056;

// Whether a part of a name has the word, with underscores around it.
bool has_word(std::string_view part, std::string_view word) {
  for (size_t at = part.find(word); at != kNone; at = part.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || part[at - 1] == '_') && (end == part.size() || part[end] == '_')) {
      return true;
    }
  }
  return false;
}

// Whether a tensor is the state of a random generator: whole numbers in a list, which
// are called so.
bool is_generator(const Tensor& tensor, const std::vector<std::string_view>& parts) {
  if (info(tensor.dtype).exponent_bits != 0 || tensor.shape.rank() != 1) return false;
  if (tensor.dtype == Dtype::kU8 && tensor.shape[0] == kTorchGeneratorBytes) return true;
  const size_t first = parts.size() - std::min<size_t>(parts.size(), 2);
  return std::any_of(parts.begin() + first, parts.end(), [](std::string_view part) {
    return has_word(part, "rng") || has_word(part, "random_state") ||
           has_word(part, "generator");
  });
}

bool is_slot(const std::vector<std::string_view>& parts) {
  if (is_one_of(parts.back(), kSlots)) return true;
  if (parts.size() > 1 && is_one_of(parts.back(), kOlderSlots)) return true;
  return parts.size() > 1 && is_one_of(parts.back(), kShortSlots) &&
         is_one_of(parts[parts.size() - 2], kParameters);
}

// What TensorFlow puts behind the names of variables, in checkpoints and in HDF5 files.
std::string_view without_ending(std::string_view name) {
  for (const std::string_view ending : {"/.ATTRIBUTES/VARIABLE_VALUE", ":0"}) {
    if (name.ends_with(ending)) name.remove_suffix(ending.size());
  }
  return name;
}

bool is_digit(char c) { return '0' <= c && c <= '9'; }

// The digits from `at` on, without leading zeros. Moves `at` behind them.
std::string_view take_digits(std::string_view text, size_t& at) {
  const size_t begin = at;
  while (at < text.size() && is_digit(text[at])) ++at;
  std::string_view digits = text.substr(begin, at - begin);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

// Numbers of any length. Less than 0 if `a` is the smaller one.
int compare_numbers(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

Role role_by_name(const Tensor& tensor) {
  const std::vector<std::string_view> parts = parts_of(without_ending(tensor.name));
  if (parts.empty()) return Role::kParameter;
  const std::string_view last = parts.back();
  const bool optimizer = std::ranges::any_of(
      parts, [](std::string_view part) { return is_one_of(part, kOptimizers); });
  const bool scalar = tensor.shape.elements() == 1;
  const bool whole_number = info(tensor.dtype).exponent_bits == 0;
  if (is_one_of(last, kBuffers)) return Role::kBuffer;
  if (is_generator(tensor, parts)) return Role::kCounter;
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
  name = without_ending(name);
  const size_t end = name.find_last_of(kSeparators);
  return end == kNone ? std::string_view() : name.substr(0, end);
}

bool NameOrder::operator()(std::string_view a, std::string_view b) const {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const int order = compare_numbers(take_digits(a, i), take_digits(b, j));
      if (order != 0) return order < 0;
      continue;
    }
    // A part that ends comes before one that goes on.
    const char x = is_separator(a[i]) ? '\0' : a[i], y = is_separator(b[j]) ? '\0' : b[j];
    if (x != y) return static_cast<unsigned char>(x) < static_cast<unsigned char>(y);
    ++i, ++j;
  }
  if (i < a.size() || j < b.size()) return j < b.size();
  return a < b;
}

}  // namespace holdfast

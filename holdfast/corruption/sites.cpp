#include "holdfast/corruption/sites.h"

#include <algorithm>

#include "holdfast/base/number_text.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

// Reads "30" or "23-30".
std::optional<BitChoice::Range> read_range(std::string_view text) {
  const size_t dash = std::min(text.find('-'), text.size());
  const auto first = count_in(text.substr(0, dash));
  const auto last = dash == text.size() ? first : count_in(text.substr(dash + 1));
  if (!first || !last || *first > *last || *last >= 128) return std::nullopt;
  return BitChoice::Range{static_cast<int>(*first), static_cast<int>(*last)};
}

// Reads ranges with commas between them. Empty if one of them is none.
std::vector<BitChoice::Range> read_ranges(std::string_view text) {
  std::vector<BitChoice::Range> ranges;
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    const auto range = read_range(text.substr(0, comma));
    if (!range) return {};
    ranges.push_back(*range);
    if (comma == text.size()) return ranges;
    text.remove_prefix(comma + 1);
  }
}

bool is_chosen(const DtypeInfo& type, const BitChoice& choice, int bit, int in_part) {
  const bool sign = in_part >= type.exponent_bits + type.mantissa_bits;
  const bool exponent = !sign && in_part >= type.mantissa_bits;
  switch (choice.field) {
    case BitChoice::Field::kAll: return true;
    case BitChoice::Field::kSign: return sign;
    case BitChoice::Field::kExponent: return exponent;
    case BitChoice::Field::kTopExponent:
      return exponent && in_part == type.exponent_bits + type.mantissa_bits - 1;
    case BitChoice::Field::kMantissa: return !sign && !exponent;
    case BitChoice::Field::kRanges:
      return std::ranges::any_of(choice.ranges, [&](const BitChoice::Range& range) {
        return range.first <= bit && bit <= range.last;
      });
  }
  return false;
}

// The name of the layer that the words of the selection mean.
Result<std::string> find_layer(const std::vector<std::string>& layers,
                               const std::string& text) {
  if (layers.empty()) return not_found("layer {}: there are no parameters", text);
  if (text == "first") return layers.front();
  if (text == "middle") return layers[layers.size() / 2];
  if (text == "last") return layers.back();
  const auto number = count_in(text);
  if (!number) {
    return invalid("layer: \"{}\"; expected first, middle, last or a number", text);
  }
  if (*number < std::ssize(layers)) return layers[static_cast<size_t>(*number)];
  return not_found("layer {}: there are {} layers; expected a number below that", text,
                   layers.size());
}

// If nothing says which parameter a slot belongs to, its name may contain the layer's, as
// in "optimizer.conv1.weight.exp_avg".
bool in_layer(const Tensor& tensor, const TensorRole& role, const std::string& layer) {
  return role.layer == layer ||
         (!layer.empty() && role.of.empty() && role.role == Role::kSlot &&
          tensor.name.find(layer + ".") != std::string::npos);
}

// Whether a tensor is selected, and which words of the selection have selected nothing.
class Selector {
 public:
  static Result<Selector> create(const Roles& roles, const SiteSelection& selection) {
    Selector selector(selection);
    if (selection.layers.empty()) return selector;
    const std::vector<std::string> layers = layers_of(roles);
    for (const std::string& text : selection.layers) {
      selector.layers_.push_back(HOLDFAST_TRY(find_layer(layers, text)));
    }
    return selector;
  }

  bool operator()(const Tensor& tensor, const TensorRole& known) {
    if (tensor.shape.elements() == 0) {
      any_pattern(tensor, empty_);
      return false;
    }
    const bool named = any_pattern(tensor, used_);
    const Role role = known.role;
    const bool has_role = roles_.empty() || std::ranges::count(roles_, role) > 0;
    bool has_layer = layers_.empty();
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool inside = in_layer(tensor, known, layers_[i]);
      has_layer = has_layer || inside;
      if (inside && named && has_role) used_layers_[i] = true;
    }
    if (!named || !has_role || !has_layer) return false;
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i] == role) used_roles_[i] = true;
    }
    return true;
  }

  // Fails for a pattern that no tensor has matched, and for a role or layer that has
  // selected no tensor.
  Result<void> check_used() const {
    for (size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      if (empty_[i]) {
        return not_found("{}: has no elements; expected a tensor with elements",
                         selection_->tensors[i]);
      }
      return not_found("{}: no tensor has such a name", selection_->tensors[i]);
    }
    for (size_t i = 0; i < used_roles_.size(); ++i) {
      if (used_roles_[i]) continue;
      return not_found("role {}: no selected tensor has it; expected another role",
                       name_of(roles_[i]));
    }
    for (size_t i = 0; i < used_layers_.size(); ++i) {
      if (used_layers_[i]) continue;
      return not_found("layer {}: no selected tensor is in it; expected another layer",
                       selection_->layers[i]);
    }
    return {};
  }

 private:
  explicit Selector(const SiteSelection& selection)
      : selection_(&selection),
        roles_(selection.roles),
        used_(selection.tensors.size()),
        empty_(selection.tensors.size()),
        used_roles_(selection.roles.size()),
        used_layers_(selection.layers.size()) {}

  // Whether a pattern selects the tensor. Marks all that do.
  bool any_pattern(const Tensor& tensor, std::vector<bool>& marks) {
    bool any = selection_->tensors.empty();
    for (size_t i = 0; i < marks.size(); ++i) {
      const std::string& pattern = selection_->tensors[i];
      const bool match = selects(pattern, tensor.name) ||
                         std::ranges::any_of(tensor.aliases, [&](const auto& alias) {
                           return selects(pattern, alias);
                         });
      marks[i] = marks[i] || match;
      any = any || match;
    }
    return any;
  }

  const SiteSelection* selection_;
  std::vector<Role> roles_;
  std::vector<std::string> layers_;  // the names of the selected layers
  std::vector<bool> used_;           // patterns
  std::vector<bool> empty_;          // patterns that select an empty tensor
  std::vector<bool> used_roles_, used_layers_;
};

// The first bits of all runs of `length` neighbouring bits.
std::vector<int> starts_of_runs(const std::vector<int>& bits, int length) {
  std::vector<int> starts;
  for (size_t i = 0; i + static_cast<size_t>(length) <= bits.size(); ++i) {
    const int last = bits[i + static_cast<size_t>(length) - 1];
    if (last - bits[i] == length - 1) starts.push_back(bits[i]);
  }
  return starts;
}

}  // namespace

Result<BitChoice> parse_bit_choice(std::string_view text) {
  using enum BitChoice::Field;
  if (text == "all") return BitChoice{.field = kAll};
  if (text == "sign") return BitChoice{.field = kSign};
  if (text == "exponent") return BitChoice{.field = kExponent};
  if (text == "top-exponent") return BitChoice{.field = kTopExponent};
  if (text == "mantissa") return BitChoice{.field = kMantissa};
  std::vector<BitChoice::Range> ranges = read_ranges(text);
  if (!ranges.empty()) {
    return BitChoice{.field = kRanges, .ranges = std::move(ranges)};
  }
  return invalid(
      "bits \"{}\": expected all, sign, exponent, top-exponent, mantissa, a bit such "
      "as 30, a range such as 23-30, or several such as 0-29,31",
      text);
}

std::vector<int> chosen_bits(Dtype dtype, const BitChoice& choice) {
  const DtypeInfo& type = info(dtype);
  const int width = type.kind == DtypeKind::kBool ? 1 : 8 * type.bytes;
  const int part = 8 * type.bytes / type.components;
  std::vector<int> bits;
  for (int bit = 0; bit < width; ++bit) {
    if (is_chosen(type, choice, bit, bit % part)) bits.push_back(bit);
  }
  return bits;
}

Result<std::vector<TensorId>> select_sites(const Collection& collection,
                                           const Roles& roles,
                                           const SiteSelection& selection) {
  Selector selector = HOLDFAST_TRY(Selector::create(roles, selection));
  std::vector<TensorId> chosen;
  for (TensorId t = 0; t < collection.tensors().size(); ++t) {
    const Tensor& tensor = collection.tensor(t);
    if (selector(tensor, roles[t])) chosen.push_back(t);
  }
  HOLDFAST_TRY(selector.check_used());
  if (chosen.empty()) {
    return not_found(
        "the selection has no tensor with elements; expected at least one");
  }
  std::ranges::sort(chosen, {}, [&](TensorId t) { return collection.tensor(t).name; });
  return chosen;
}

Sites::Sites(const Collection& collection, const std::vector<TensorId>& tensors,
             const BitChoice& bits, int length, bool whole_elements) {
  for (const TensorId t : tensors) {
    const Tensor& tensor = collection.tensor(t);
    auto [entry, added] = bits_.try_emplace(tensor.dtype);
    if (added) {
      entry->second = whole_elements
                          ? std::vector<int>{0}
                          : starts_of_runs(chosen_bits(tensor.dtype, bits), length);
    }
    if (entry->second.empty()) continue;
    parts_.push_back({t, size_, &entry->second});
    size_ += tensor.shape.elements() * std::ssize(entry->second);
  }
}

FlipSite Sites::operator[](int64_t number) const {
  const auto after = std::ranges::upper_bound(parts_, number, {}, &Part::first);
  const Part& part = *std::prev(after);
  const int64_t count = std::ssize(*part.bits), place = number - part.first;
  return {.tensor = part.tensor,
          .element = place / count,
          .bit = (*part.bits)[static_cast<size_t>(place % count)]};
}

}  // namespace holdfast

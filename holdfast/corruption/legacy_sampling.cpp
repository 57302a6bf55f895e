#include "holdfast/corruption/legacy_sampling.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "holdfast/base/json_fields.h"
#include "holdfast/corruption/plan_builder.h"
#include "holdfast/corruption/shared_storage.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

// The original tool handles no more dimensions.
constexpr int kMostDimensions = 4;
// How often another bit is drawn if the request does not allow what comes of the first.
constexpr int kMostBits = 1000;
// How many elements that are drawn for one flip may belong to an earlier tensor.
constexpr int kMostTaken = 1000;

// The bits of an integer up to the highest one that is set in its amount.
std::vector<int> significant_bits(Dtype dtype, const ElementBits& bits) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= static_cast<uint64_t>(bits[i]) << (8 * i);
  const int unused = 64 - 8 * static_cast<int>(bytes_of(dtype));
  const auto number = static_cast<int64_t>(value << unused) >> unused;
  const bool negative = info(dtype).kind == DtypeKind::kSigned && number < 0;
  const uint64_t amount = negative ? -static_cast<uint64_t>(number) : value;
  std::vector<int> significant(
      static_cast<size_t>(std::max(static_cast<int>(std::bit_width(amount)), 1)));
  for (size_t i = 0; i < significant.size(); ++i) significant[i] = static_cast<int>(i);
  return significant;
}

class LegacyDrawer {
 public:
  LegacyDrawer(const Contents& contents, const PlanRequest& request,
               const std::vector<TensorId>& tensors, PlanBuilder& builder)
      : contents_(contents),
        request_(request),
        tensors_(tensors),
        builder_(builder),
        shared_(contents, tensors),
        draws_(request.seed, request.trial) {}

  Result<void> draw() {
    const std::optional<Drawn> drawn = HOLDFAST_TRY(draw_element());
    if (!drawn) return {};
    const auto [id, element] = *drawn;
    const Tensor& tensor = contents_.collection.tensor(id);
    const std::vector<int> bits = HOLDFAST_TRY(bits_of(id, element));
    if (bits.empty()) return {};
    for (int attempt = 0; attempt < kMostBits; ++attempt) {
      const FlipSite site{id, element, bits[pick(bits.size())]};
      if (HOLDFAST_TRY(builder_.add(site))) return {};
      HOLDFAST_TRY(builder_.pass_over());
    }
    return not_found(
        "{} {}: {} bits were drawn, and none is allowed; expected a "
        "selection with others",
        tensor.name, index_text(tensor.shape, element), kMostBits);
  }

 private:
  struct Drawn {
    TensorId id;
    int64_t element;
  };

  // Nullopt for a tensor of too many dimensions.
  Result<std::optional<Drawn>> draw_element() {
    for (int taken = 0; taken < kMostTaken;) {
      const TensorId id = tensors_[pick(tensors_.size())];
      const Tensor& tensor = contents_.collection.tensor(id);
      if (tensor.shape.rank() > kMostDimensions) return std::optional<Drawn>();
      const int64_t element = draws_.below(tensor.shape.elements());
      if (!is_stored(contents_, id, element)) {
        HOLDFAST_TRY(builder_.pass_unwritten());
        continue;
      }
      // A byte that an earlier tensor has, too, would be struck more often than others.
      if (!shared_.is_taken(id, element)) return std::optional(Drawn{id, element});
      ++taken;
    }
    return not_found("{} drawn elements belong to other tensors, too; expected a "
                     "selection with others",
                     kMostTaken);
  }

  size_t pick(size_t count) {
    return static_cast<size_t>(draws_.below(static_cast<int64_t>(count)));
  }

  Result<std::vector<int>> bits_of(TensorId id, int64_t element) {
    const Dtype dtype = contents_.collection.tensor(id).dtype;
    if (info(dtype).exponent_bits == 0) {
      return significant_bits(dtype, HOLDFAST_TRY(builder_.bits_at(id, element)));
    }
    return chosen_bits(dtype, request_.sites.bits);
  }

  const Contents& contents_;
  const PlanRequest& request_;
  const std::vector<TensorId>& tensors_;
  PlanBuilder& builder_;
  const SharedStorage shared_;
  Draws draws_;
};

// One entry of a sequence.
struct Recorded {
  std::vector<int64_t> index;  // empty if it is not recorded
  std::vector<int64_t> bits;   // 0 is the highest bit
};

Result<std::vector<int64_t>> read_numbers(const JsonPlace& at) {
  std::vector<int64_t> numbers;
  if (at.is_list()) {
    HOLDFAST_TRY(read_json(at, numbers));
  } else {
    HOLDFAST_TRY(at.read(numbers.emplace_back()));
  }
  return numbers;
}

Result<Recorded> read_entry(const JsonPlace& at) {
  const bool pair = at.is_list() && *at.length() == 2 && at.item(0).is_list();
  Recorded entry;
  if (pair) entry.index = HOLDFAST_TRY(read_numbers(at.item(0)));
  entry.bits = HOLDFAST_TRY(read_numbers(pair ? at.item(1) : at));
  return entry;
}

// Repeats the entries of a sequence.
class Replay {
 public:
  Replay(const Contents& contents, const PlanRequest& request)
      : contents_(contents),
        builder_(contents, request),
        draws_(request.seed, request.trial) {}

  Result<void> add(const std::string& location, const Recorded& entry,
                   const std::string& where) {
    const TensorId id = HOLDFAST_TRY(find(location, entry));
    const Tensor& tensor = contents_.collection.tensor(id);
    const int64_t element = HOLDFAST_TRY(element_of_index(tensor, entry, where));
    std::vector<int> bits;
    const int64_t width = 8 * bytes_of(tensor.dtype);
    for (const int64_t highest_first : entry.bits) {
      if (highest_first >= width) {
        return invalid("{}: bit {}; expected one of {} of the {} of {}", where,
                       highest_first, width, name_of(tensor.dtype), tensor.name);
      }
      bits.push_back(static_cast<int>(width - 1 - highest_first));
    }
    HOLDFAST_TRY(builder_.add_bits(id, element, bits));
    return {};
  }

  FlipPlan finish() && {
    FlipPlan plan = std::move(builder_).finish();
    plan.fault = "sequence";
    return plan;
  }

 private:
  Result<TensorId> find(const std::string& location, const Recorded& entry) {
    std::vector<TensorId> found;
    for (TensorId t = 0; t < contents_.collection.tensors().size(); ++t) {
      const Tensor& tensor = contents_.collection.tensor(t);
      const bool fits = entry.index.empty() || tensor.shape.rank() == 0 ||
                        std::ssize(entry.index) == tensor.shape.rank();
      const bool named = selects(location, tensor.name);
      if (named && fits && tensor.shape.elements() > 0) found.push_back(t);
    }
    if (found.empty()) {
      return not_found("{}: no tensor of this name has such an index", location);
    }
    std::ranges::sort(found, {},
                      [&](TensorId t) { return contents_.collection.tensor(t).name; });
    return found.size() == 1
               ? found[0]
               : found[static_cast<size_t>(draws_.below(std::ssize(found)))];
  }

  Result<int64_t> element_of_index(const Tensor& tensor, const Recorded& entry,
                                   const std::string& where) {
    if (entry.index.empty()) return draws_.below(tensor.shape.elements());
    int64_t element = 0;
    for (int k = 0; k < tensor.shape.rank(); ++k) {
      const int64_t at = entry.index[static_cast<size_t>(k)];
      if (at >= tensor.shape[k]) {
        return invalid("{}: index {} in dimension {}; expected one below {} for {}",
                       where, at, k, tensor.shape[k], tensor.name);
      }
      element = element * tensor.shape[k] + at;
    }
    return element;
  }

  const Contents& contents_;
  PlanBuilder builder_;
  Draws draws_;
};

}  // namespace

Result<void> draw_legacy(const Contents& contents, const PlanRequest& request,
                         const std::vector<TensorId>& tensors, PlanBuilder& builder) {
  if (request.rate) {
    return invalid("a rate with legacy sampling; expected a number of flips");
  }
  LegacyDrawer drawer(contents, request, tensors, builder);
  for (int64_t i = 0; i < request.count; ++i) HOLDFAST_TRY(drawer.draw());
  return {};
}

Result<FlipPlan> plan_from_sequence(const Contents& contents, std::string_view text,
                                    const std::string& where,
                                    const PlanRequest& request) {
  const auto json = HOLDFAST_TRY(JsonDocument::parse(text, where));
  const JsonPlace root = json.root();
  if (!root.is_object()) {
    return invalid("{}: expected an object that maps locations to lists", where);
  }
  Replay replay(contents, request);
  HOLDFAST_TRY(root.for_each(
      [&](const std::string& location, const JsonPlace& entries) -> Result<void> {
        const std::string at = fmt::format("{}: {}", where, location);
        if (!entries.is_list()) return invalid("{}: expected a list", at);
        for (size_t i = 0; i < *entries.length(); ++i) {
          const JsonPlace entry = entries.item(i);
          if (entry.is_null()) continue;
          HOLDFAST_TRY(replay.add(location, HOLDFAST_TRY(read_entry(entry)), at));
        }
        return {};
      }));
  return std::move(replay).finish();
}

}  // namespace holdfast

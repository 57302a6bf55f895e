// Collects the faults of a plan. For make_plan.cpp and legacy_sampling.cpp.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "holdfast/corruption/make_plan.h"
#include "holdfast/state/mix64.h"

namespace holdfast {

// Random numbers that depend only on the seed and the trial: number i is
// mix64(mix64(mix64(seed ^ "draws") ^ trial) + i).
class Draws {
 public:
  Draws(int64_t seed, int64_t trial);
  // A number in [0, limit), all equally likely.
  int64_t below(int64_t limit);

 private:
  uint64_t next() { return mix64(base_ + at_++); }

  uint64_t base_;
  uint64_t at_ = 0;
};

class PlanBuilder {
 public:
  // Both must outlive the builder.
  PlanBuilder(const Contents& contents, const PlanRequest& request)
      : contents_(contents), request_(request) {}

  // The bits of an element, with the faults that were added.
  Result<ElementBits> bits_at(TensorId tensor, int64_t element);
  // Adds a fault of the request's kind at this site. Returns false, and adds nothing, if
  // the request does not allow what the element would become.
  Result<bool> add(const FlipSite& site);
  // Adds a fault that flips these bits.
  Result<bool> add_bits(TensorId tensor, int64_t element, std::span<const int> bits);
  // Counts a site that was passed over. Fails with kNotFound after too many of them.
  Result<void> pass_over();
  // The same for a site of an element that was never written.
  Result<void> pass_unwritten();

  FlipPlan finish() &&;

 private:
  struct Change {
    ElementBits before{};
    ElementBits after{};
  };

  Result<Change*> change_at(TensorId tensor, int64_t element);
  Result<ElementBits> after_fault(Dtype dtype, ElementBits bits, int bit) const;
  bool is_allowed(Dtype dtype, const ElementBits& bits) const;

  const Contents& contents_;
  const PlanRequest& request_;
  std::map<std::pair<TensorId, int64_t>, Change> changes_;
  std::vector<std::pair<TensorId, int64_t>>
      order_;  // of the first fault of each element
  int64_t passed_over_ = 0;
  int64_t unwritten_ = 0;
};

// Draws all faults of the request as Sampling::kLegacy says.
Result<void> draw_legacy(const Contents& contents, const PlanRequest& request,
                         const std::vector<TensorId>& tensors, PlanBuilder& builder);

}  // namespace holdfast

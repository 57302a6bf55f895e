#include "holdfast/corruption/make_plan.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/int128.h"
#include "holdfast/corruption/plan_builder.h"
#include "holdfast/corruption/shared_storage.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/base/reproducible_math.h"
#include "holdfast/state/sample_sequence.h"

namespace holdfast {
namespace {

// A plan is for studying faults, and not for writing noise.
constexpr int64_t kMostFaults = 10'000'000;
// How many sites without bytes are drawn before a request is given up. It takes seconds.
constexpr int64_t kMostUnwritten = 10'000'000;

Result<void> check_request(const PlanRequest& request) {
  const Fault& fault = request.fault;
  if (request.count < 1 || request.count > kMostFaults) {
    return invalid("{} faults; expected from 1 to {}", request.count, kMostFaults);
  }
  if (request.rate && !(*request.rate > 0 && *request.rate <= 1)) {
    return invalid("a rate of {}; expected more than 0 and at most 1", *request.rate);
  }
  if (request.seed < 0 || request.trial < 0) {
    return invalid("seed {} and trial {}; expected no negative number", request.seed,
                   request.trial);
  }
  const bool pattern = !fault.pattern.empty() &&
                       fault.pattern.find_first_not_of("01") == std::string::npos &&
                       fault.pattern.find('1') != std::string::npos;
  if (fault.kind == Fault::Kind::kMask && !pattern) {
    return invalid("mask \"{}\": expected binary digits such as 1011", fault.pattern);
  }
  if (fault.bits() < 1 || fault.bits() > 128) {
    return invalid("a fault of {} bits; expected from 1 to 128", fault.bits());
  }
  return {};
}

// How many of `sites` are struck if each is struck with this probability. The distances
// between struck sites have a geometric distribution.
Result<int64_t> draw_count(int64_t sites, const PlanRequest& request) {
  if (!request.rate) return request.count;
  if (*request.rate == 1 && sites <= kMostFaults) return sites;
  Draws draws(request.seed, request.trial);
  const double scale = reproducible::log1p(-*request.rate);
  constexpr int64_t kSteps = int64_t{1} << 53;
  int64_t count = 0;
  for (double at = 0; count <= kMostFaults; ++count) {
    const double uniform =
        static_cast<double>(draws.below(kSteps) + 1) / static_cast<double>(kSteps);
    at += std::floor(reproducible::log(uniform) / scale) + 1;
    if (at > static_cast<double>(sites)) return count;
  }
  return invalid("a rate of {} strikes more than {} of {} sites; expected a lower rate",
                 *request.rate, kMostFaults, sites);
}

// Draws distinct sites that are equally likely.
Result<void> draw_sites(const Contents& contents, const PlanRequest& request,
                        const std::vector<TensorId>& tensors, const Sites& sites,
                        PlanBuilder& builder) {
  const SharedStorage shared(contents, tensors);
  const Shuffle order(sites.size(), static_cast<uint64_t>(request.seed), request.trial);
  int64_t left = HOLDFAST_TRY(draw_count(sites.size(), request));
  for (int64_t place = 0; left > 0; ++place) {
    if (place == sites.size()) {
      return invalid(
          "{} of the faults have no site left among {}; expected fewer faults, or a "
          "wider selection",
          left, sites.size());
    }
    const FlipSite site = sites[order(place)];
    if (shared.is_taken(site.tensor, site.element)) continue;
    if (!is_stored(contents, site.tensor, site.element)) {
      HOLDFAST_TRY(builder.pass_unwritten());
      if (request.rate) --left;
      continue;
    }
    if (HOLDFAST_TRY(builder.add(site))) {
      --left;
    } else {
      HOLDFAST_TRY(builder.pass_over());
    }
  }
  return {};
}

}  // namespace

Roles roles_of(const Contents& contents, const PlanRequest& request) {
  return request.roles ? *request.roles : find_roles(contents, false);
}

int Fault::bits() const {
  switch (kind) {
    case Kind::kBurst: return length;
    case Kind::kMask: return static_cast<int>(std::min<size_t>(pattern.size(), 1000));
    default: return 1;
  }
}

std::string Fault::text() const {
  switch (kind) {
    case Kind::kFlip: return "flip";
    case Kind::kBurst: return fmt::format("burst {}", length);
    case Kind::kMask: return fmt::format("mask {}", pattern);
    case Kind::kStuckAt: return fmt::format("stuck-at {}", level ? 1 : 0);
    case Kind::kScale: return fmt::format("scale {}", number);
    case Kind::kValue: return fmt::format("value {}", number);
  }
  return "";
}

Draws::Draws(int64_t seed, int64_t trial)
    : base_(mix64(mix64(static_cast<uint64_t>(seed) ^ 0x6472617773) ^  // "draws"
                  static_cast<uint64_t>(trial))) {}

int64_t Draws::below(int64_t limit) {
  // The high half of a product is uniform if those products are left out whose low half
  // is below 2^64 mod limit.
  const auto n = static_cast<uint64_t>(limit);
  const uint64_t least = -n % n;
  while (true) {
    const auto product = static_cast<Uint128>(next()) * n;
    if (static_cast<uint64_t>(product) >= least) {
      return static_cast<int64_t>(product >> 64);
    }
  }
}

Result<PlanBuilder::Change*> PlanBuilder::change_at(TensorId tensor, int64_t element) {
  const auto [entry, added] = changes_.try_emplace({tensor, element});
  if (added) {
    const int64_t size = bytes_of(contents_.collection.tensor(tensor).dtype);
    Bytes bytes(static_cast<size_t>(size));
    HOLDFAST_TRY(read_canonical(contents_, tensor, element * size, bytes));
    entry->second.before = entry->second.after = element_bits(bytes);
  }
  return &entry->second;
}

Result<ElementBits> PlanBuilder::bits_at(TensorId tensor, int64_t element) {
  return HOLDFAST_TRY(change_at(tensor, element))->after;
}

Result<ElementBits> PlanBuilder::after_fault(Dtype dtype, ElementBits bits,
                                             int bit) const {
  const Fault& fault = request_.fault;
  switch (fault.kind) {
    case Fault::Kind::kFlip: return with_flipped(bits, bit);
    case Fault::Kind::kBurst:
      for (int i = 0; i < fault.length; ++i) bits = with_flipped(bits, bit + i);
      return bits;
    case Fault::Kind::kMask:
      for (int i = 0; i < fault.bits(); ++i) {
        const bool set = fault.pattern[fault.pattern.size() - 1 - size_t(i)] == '1';
        if (set) bits = with_flipped(bits, bit + i);
      }
      return bits;
    case Fault::Kind::kStuckAt:
      return has_bit(bits, bit) == fault.level ? bits : with_flipped(bits, bit);
    case Fault::Kind::kScale: return scaled(dtype, bits, fault.number);
    case Fault::Kind::kValue: return element_of(dtype, fault.number);
  }
  return bits;
}

bool PlanBuilder::is_allowed(Dtype dtype, const ElementBits& bits) const {
  if (request_.finite == Finite::kAny) return true;
  return is_finite(dtype, bits) == (request_.finite == Finite::kMust);
}

Result<bool> PlanBuilder::add(const FlipSite& site) {
  const Tensor& tensor = contents_.collection.tensor(site.tensor);
  Change& change = *HOLDFAST_TRY(change_at(site.tensor, site.element));
  const ElementBits after = HOLDFAST_TRY(
      after_fault(tensor.dtype, change.after, site.bit).within(tensor.name));
  if (!is_allowed(tensor.dtype, after)) return false;
  change.after = after;
  order_.emplace_back(site.tensor, site.element);
  return true;
}

Result<bool> PlanBuilder::add_bits(TensorId tensor, int64_t element,
                                   std::span<const int> bits) {
  Change& change = *HOLDFAST_TRY(change_at(tensor, element));
  ElementBits after = change.after;
  for (const int bit : bits) after = with_flipped(after, bit);
  if (!is_allowed(contents_.collection.tensor(tensor).dtype, after)) return false;
  change.after = after;
  order_.emplace_back(tensor, element);
  return true;
}

Result<void> PlanBuilder::pass_over() {
  const int64_t most = 10'000 + 100 * request_.count;
  if (++passed_over_ <= most) return {};
  return not_found(
      "{} drawn sites would become {}; expected a selection with others", passed_over_,
      request_.finite == Finite::kMust ? "NaN or infinite" : "finite numbers");
}

Result<void> PlanBuilder::pass_unwritten() {
  if (++unwritten_ <= kMostUnwritten) return {};
  return not_found(
      "{} drawn sites were never written; expected a selection with elements that have "
      "bytes in the file",
      unwritten_);
}

FlipPlan PlanBuilder::finish() && {
  FlipPlan plan{.seed = request_.seed,
                .trial = request_.trial,
                .fault = request_.fault.text(),
                .passed_over = passed_over_,
                .unwritten = unwritten_};
  for (const auto& place : order_) {
    const auto found = changes_.find(place);
    if (found == changes_.end())
      continue;  // another fault of an element that is listed
    const Tensor& tensor = contents_.collection.tensor(place.first);
    plan.flips.push_back({.tensor = tensor.name,
                          .element = place.second,
                          .index = index_of(tensor.shape, place.second),
                          .dtype = tensor.dtype,
                          .before = found->second.before,
                          .after = found->second.after});
    changes_.erase(found);
  }
  return plan;
}

Result<FlipPlan> make_plan(const Contents& contents, const PlanRequest& request) {
  HOLDFAST_TRY(check_request(request));
  const std::vector<TensorId> tensors = HOLDFAST_TRY(
      select_sites(contents.collection, roles_of(contents, request), request.sites));
  const Sites sites(contents.collection, tensors, request.sites.bits,
                    request.fault.bits(), request.fault.whole_elements());
  if (sites.size() == 0) {
    return invalid("no selected tensor has such bits; expected other bits or tensors");
  }
  PlanBuilder builder(contents, request);
  HOLDFAST_TRY(request.sampling == Sampling::kLegacy
                   ? draw_legacy(contents, request, tensors, builder)
                   : draw_sites(contents, request, tensors, sites, builder));
  FlipPlan plan = std::move(builder).finish();
  plan.sites = sites.size();
  return plan;
}

Result<FlipPlan> make_byte_plan(Env& env, std::span<const NamedFile> files,
                                int64_t count, int64_t seed, int64_t trial) {
  HOLDFAST_TRY(check_request({.count = count, .seed = seed, .trial = trial}));
  std::vector<std::unique_ptr<FileSource>> sources;
  std::vector<int64_t> begins;
  int64_t total = 0;
  for (const NamedFile& file : files) {
    sources.push_back(HOLDFAST_TRY(FileSource::open(env, file.path)));
    begins.push_back(total);
    total += sources.back()->size();
  }
  if (count > 8 * total) {
    return invalid("{} flips in {} bytes; expected at most {}", count, total,
                   8 * total);
  }
  FlipPlan plan{
      .seed = seed, .trial = trial, .fault = "flip anywhere", .sites = 8 * total};
  const Shuffle order(8 * total, static_cast<uint64_t>(seed), trial);
  std::map<int64_t, size_t> known;  // the byte, and its place in the plan
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bit = order(i), byte = bit / 8;
    const auto after = std::ranges::upper_bound(begins, byte);
    const auto file = static_cast<size_t>(after - begins.begin() - 1);
    const auto [entry, added] = known.try_emplace(byte, plan.bytes.size());
    if (added) {
      const int64_t offset = byte - begins[file];
      const Bytes read = HOLDFAST_TRY(sources[file]->read_bytes(offset, 1));
      plan.bytes.push_back({files[file].name, offset, read[0], read[0]});
    }
    plan.bytes[entry->second].after ^= static_cast<std::byte>(1 << (bit % 8));
  }
  return plan;
}

}  // namespace holdfast

#include "holdfast/plan/balance.h"

#include <algorithm>
#include <numeric>

#include "holdfast/plan/max_flow.h"
#include "holdfast/state/union_find.h"

namespace holdfast {
namespace {

constexpr int64_t kRowLimit = 32 << 10;  // bytes; boxes are cut between such rows

// How many elements the largest whole row of `box` has that is at most kRowLimit bytes.
// A row may extend over several inner dimensions.
int64_t grain_of(const Box& box, int64_t element_bytes) {
  int64_t row = 1;
  for (int k = box.rank() - 1; k >= 0; --k) {
    if (row * box.size(k) * element_bytes > kRowLimit) break;
    row *= box.size(k);
  }
  return row;
}

}  // namespace

bool Balancer::Ratio::operator<(const Ratio& other) const {
  return Int128{bytes} * other.bandwidth < Int128{other.bytes} * bandwidth;
}

Balancer::Balancer(std::vector<int64_t> bandwidth)
    : bandwidth_(std::move(bandwidth)), owed_(bandwidth_.size()) {
  for (const int64_t b : bandwidth_) HOLDFAST_CHECK(b > 0, "bandwidth {}", b);
}

Balancer::ClassId Balancer::class_of(std::span<const uint32_t> senders) {
  HOLDFAST_CHECK(!senders.empty(), "a class without senders");
  const std::vector<uint32_t> key(senders.begin(), senders.end());
  const auto [at, is_new] =
      ids_.try_emplace(key, static_cast<ClassId>(classes_.size()));
  if (is_new) classes_.push_back({.senders = key});
  return at->second;
}

void Balancer::solve() {
  UnionFind sharing(bandwidth_.size());
  for (const Class& c : classes_) {
    for (const uint32_t s : c.senders) sharing.join(s, c.senders.front());
  }
  std::map<uint32_t, std::vector<ClassId>> groups;
  for (ClassId id = 0; id < classes_.size(); ++id) {
    groups[sharing.root(classes_[id].senders.front())].push_back(id);
  }
  for (const auto& [root, group] : groups) solve_group(group);
}

// The group of these classes. Senders are renumbered, and bandwidths are divided by
// their greatest common divisor.
Balancer::Group Balancer::group_of(std::span<const ClassId> ids) const {
  Group group{.ids = ids};
  std::vector<uint32_t> senders;
  for (const ClassId id : ids) {
    senders.insert(senders.end(), classes_[id].senders.begin(),
                   classes_[id].senders.end());
  }
  std::sort(senders.begin(), senders.end());
  senders.erase(std::unique(senders.begin(), senders.end()), senders.end());
  for (const uint32_t s : senders) group.unit = std::gcd(group.unit, bandwidth_[s]);
  for (const uint32_t s : senders)
    group.bandwidth.push_back(bandwidth_[s] / group.unit);
  for (const ClassId id : ids) {
    std::vector<uint32_t>& local = group.edges.emplace_back();
    for (const uint32_t s : classes_[id].senders) {
      local.push_back(static_cast<uint32_t>(
          std::lower_bound(senders.begin(), senders.end(), s) - senders.begin()));
    }
  }
  return group;
}

// The time that the senders of the marked classes need for these classes alone.
Balancer::Ratio Balancer::time_of(const Group& group,
                                  const std::vector<bool>& tight) const {
  Ratio time{0, 0};
  std::vector<bool> counted(group.bandwidth.size());
  for (size_t c = 0; c < group.ids.size(); ++c) {
    if (!tight[c]) continue;
    time.bytes += classes_[group.ids[c]].bytes;
    for (const uint32_t s : group.edges[c]) {
      if (!counted[s]) time.bandwidth += group.bandwidth[s], counted[s] = true;
    }
  }
  HOLDFAST_CHECK(time.bandwidth > 0, "a cut without senders");
  return time;
}

void Balancer::solve_group(std::span<const ClassId> ids) {
  const Group group = group_of(ids);
  std::vector<bool> tight(ids.size(), true);  // the classes that decide the time
  for (;;) {
    Ratio time = time_of(group, tight);
    std::vector<Int128> supply, capacity;
    for (const ClassId id : ids) {
      supply.push_back(Int128{classes_[id].bytes} * time.bandwidth);
    }
    for (const int64_t b : group.bandwidth) capacity.push_back(Int128{b} * time.bytes);
    BipartiteFlow flow(std::move(supply), std::move(capacity), group.edges);
    if (flow.run()) {
      share_out(group, flow, time);
      time.bandwidth *= group.unit;
      optimum_ = std::max(optimum_, time);
      return;
    }
    tight = flow.short_classes();
  }
}

void Balancer::share_out(const Group& group, const BipartiteFlow& flow,
                         const Ratio& time) {
  for (size_t c = 0; c < group.ids.size(); ++c) {
    Class& one = classes_[group.ids[c]];
    int64_t left = one.bytes;
    for (size_t k = 0; k < one.senders.size(); ++k) {
      one.share.push_back(static_cast<int64_t>(flow.flow(c, k) / time.bandwidth));
      left -= one.share.back();
    }
    // Rounding lost less than a byte for each sender.
    for (size_t k = 0; left > 0; ++k, --left) ++one.share[k];
  }
}

// Sets where each sender's stretch of the class ends. It corrects what rounding in
// other classes has left owed to the senders, minus the mean of it, so that the total
// of this class stays the same.
void Balancer::open(Class& from) {
  int64_t mean = 0;
  for (const uint32_t s : from.senders) mean += owed_[s];
  mean /= static_cast<int64_t>(from.senders.size());
  int64_t end = 0;
  for (size_t k = 0; k < from.senders.size(); ++k) {
    int64_t& owed = owed_[from.senders[k]];
    from.share[k] += owed - mean;
    owed = mean;
    end += from.share[k];
    from.end.push_back(end);
  }
}

// Goes on to the next sender. Notes how much the current sender got more or less than
// its share.
void Balancer::finish(Class& from) {
  owed_[from.senders[from.next]] += from.share[from.next] - (from.drawn - from.start);
  from.start = from.drawn;
  ++from.next;
}

// The boxes of a class stand one after the other on one line. Each sender sends the
// stretch up to its end, which is rounded to a row of the box that it falls into.
// Rounding the ends, and not the lengths, keeps every sender within one row of its
// share.
void Balancer::draw(ClassId id, const Box& box, int64_t element_bytes,
                    std::vector<Part>& out) {
  Class& from = classes_[id];
  if (from.end.empty()) open(from);
  const int64_t elements = box.elements();
  const int64_t grain = grain_of(box, element_bytes);
  int64_t done = 0;
  while (done < elements) {
    const int64_t left = elements - done;
    const int64_t room = (from.end[from.next] - from.drawn) / element_bytes;
    const bool last = from.next + 1 == from.senders.size();
    const bool ends = !last && room < left;
    const int64_t count =
        ends ? std::clamp<int64_t>((room + grain / 2) / grain * grain, 0, left) : left;
    for (const Box& part : flat_range(box, done, done + count)) {
      out.push_back({from.senders[from.next], part});
    }
    done += count;
    from.drawn += count * element_bytes;
    if (ends) finish(from);
  }
  while (elements > 0 && from.drawn == from.bytes && from.next < from.senders.size()) {
    finish(from);
  }
}

}  // namespace holdfast

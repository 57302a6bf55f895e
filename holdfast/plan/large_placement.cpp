#include "holdfast/plan/large_placement.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "holdfast/plan/assignment.h"
#include "holdfast/plan/atoms.h"

namespace holdfast {
namespace {

using Indices = std::vector<uint32_t>;

constexpr uint32_t kNoKind = UINT32_MAX;
constexpr size_t kMaxPairs = size_t{1} << 26;

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// The kind of each holder: holders of one kind have the same boxes of the same tensors.
// A kind is found by the sum of a 128-bit number for each box.
Indices kinds_of(const Layout& layout, size_t& count) {
  std::vector<std::pair<uint64_t, uint64_t>> sums(layout.holders().size());
  uint64_t number = 0;
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    for (const Slice& slice : layout.slices(t)) {
      const uint64_t first = mix(2 * number), second = mix(2 * number + 1);
      ++number;
      for (PieceId piece = slice.first; piece < slice.last; ++piece) {
        auto& sum = sums[layout.holder(piece)];
        sum.first += first;
        sum.second += second;
      }
    }
  }
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> known;
  Indices kinds;
  for (const auto& sum : sums) {
    kinds.push_back(
        known.try_emplace(sum, static_cast<uint32_t>(known.size())).first->second);
  }
  count = known.size();
  return kinds;
}

// What positions find on devices, by their kinds.
struct Overlaps {
  Indices kind_of_position;
  Indices kind_of_device;  // kNoKind: a device that holds nothing
  std::vector<Indices> devices_of_kind;
  std::vector<std::unordered_map<uint32_t, int64_t>> bytes;  // by kind of position

  int64_t held(uint32_t position, uint32_t device) const {
    const uint32_t kind = kind_of_device[device];
    if (kind == kNoKind) return 0;
    const auto& row = bytes[kind_of_position[position]];
    const auto found = row.find(kind);
    return found == row.end() ? 0 : found->second;
  }
};

// The kinds of an atom's holders, each once.
class KindSet {
 public:
  explicit KindSet(size_t kinds) : seen_(kinds) {}

  template <typename Kind>
  const Indices& of(std::span<const HolderPiece> pieces, const Kind& kind) {
    ++round_;
    kinds_.clear();
    for (const HolderPiece& piece : pieces) {
      const uint32_t k = kind(piece);
      if (k == kNoKind || seen_[k] == round_) continue;
      seen_[k] = round_;
      kinds_.push_back(k);
    }
    return kinds_;
  }

 private:
  std::vector<uint64_t> seen_;
  uint64_t round_ = 0;
  Indices kinds_;
};

Result<Overlaps> find_overlaps(const Collection& source, const Collection& target,
                               const Topology& topology,
                               const std::vector<Holder>& devices, uint32_t positions) {
  const HolderTable table =
      HOLDFAST_TRY(HolderTable::merge(source.layout(), target.layout(), topology));
  Overlaps overlaps;
  size_t target_kinds = 0, source_kinds = 0;
  const Indices of_target = kinds_of(target.layout(), target_kinds);
  const Indices of_source = kinds_of(source.layout(), source_kinds);
  overlaps.kind_of_position.assign(of_target.begin(), of_target.begin() + positions);
  overlaps.kind_of_device.assign(devices.size(), kNoKind);
  overlaps.devices_of_kind.resize(source_kinds);
  overlaps.bytes.resize(target_kinds);
  std::unordered_map<std::string_view, uint32_t> device_named;
  for (uint32_t d = 0; d < devices.size(); ++d)
    device_named.emplace(devices[d].name, d);
  for (HolderId h = 0; h < of_source.size(); ++h) {
    const auto found = device_named.find(source.layout().holders()[h].name);
    if (found == device_named.end()) continue;
    overlaps.kind_of_device[found->second] = of_source[h];
    overlaps.devices_of_kind[of_source[h]].push_back(found->second);
  }
  KindSet wanted(target_kinds), owned(source_kinds);
  size_t pairs = 0;
  HOLDFAST_TRY(for_each_atom(source, target, table, [&](const Atom& atom) {
    if (pairs > kMaxPairs) return;
    const Indices& rows = wanted.of(atom.targets, [&](const HolderPiece& piece) {
      return of_target[target.layout().holder(piece.piece)];
    });
    const Indices& columns = owned.of(atom.sources, [&](const HolderPiece& piece) {
      return of_source[source.layout().holder(piece.piece)];
    });
    for (const uint32_t row : rows) {
      for (const uint32_t column : columns) {
        const auto [entry, is_new] = overlaps.bytes[row].try_emplace(column, 0);
        entry->second += atom.bytes;
        pairs += is_new ? 1 : 0;
      }
    }
  }));
  if (pairs > kMaxPairs) {
    return unsupported(
        "place: more than {} pairs of positions and devices have bytes in common; "
        "expected fewer: plan without --place, or with a smaller dp",
        kMaxPairs);
  }
  return overlaps;
}

// No position keeps more than on its best device, no device more than for its best
// position.
int64_t bound_of(const Overlaps& overlaps) {
  const size_t kinds = overlaps.devices_of_kind.size();
  std::vector<int64_t> of_row(overlaps.bytes.size()), of_column(kinds);
  for (size_t row = 0; row < overlaps.bytes.size(); ++row) {
    for (const auto& [column, bytes] : overlaps.bytes[row]) {
      if (overlaps.devices_of_kind[column].empty()) continue;
      of_row[row] = std::max(of_row[row], bytes);
      of_column[column] = std::max(of_column[column], bytes);
    }
  }
  int64_t by_position = 0, by_device = 0;
  for (const uint32_t kind : overlaps.kind_of_position) by_position += of_row[kind];
  for (size_t kind = 0; kind < kinds; ++kind) {
    by_device +=
        of_column[kind] * static_cast<int64_t>(overlaps.devices_of_kind[kind].size());
  }
  return std::min(by_position, by_device);
}

// A kind of groups and a host that have bytes in common.
struct Choice {
  int64_t worth;
  uint32_t kind;
  uint32_t host;
};

// Gives groups to hosts. A group needs one host with room for it, or several whole hosts
// if it is larger than a host.
class GreedyPlacer {
 public:
  GreedyPlacer(const Overlaps& overlaps, const std::vector<Holder>& devices,
               uint32_t group)
      : overlaps_(overlaps), group_(group), host_of_(devices.size()) {
    std::map<HostId, uint32_t> index;
    for (uint32_t d = 0; d < devices.size(); ++d) {
      const auto [at, is_new] =
          index.try_emplace(devices[d].host, static_cast<uint32_t>(hosts_.size()));
      if (is_new) hosts_.emplace_back();
      hosts_[at->second].push_back(d);
      host_of_[d] = at->second;
    }
    groups_ = static_cast<uint32_t>(overlaps.kind_of_position.size()) / group;
  }

  Result<Indices> run() {
    HOLDFAST_TRY(count_room());
    groups_of_.resize(hosts_.size());
    hosts_of_.resize(groups_);
    find_kinds();
    const std::vector<Choice> choices = best_first();
    for (size_t first = 0; first < choices.size();) {
      size_t last = first;
      while (last < choices.size() && choices[last].worth == choices[first].worth)
        ++last;
      // A group's own host comes first if two hosts are equally good.
      for (size_t c = first; c < last; ++c) take_own(choices[c]);
      for (size_t c = first; c < last; ++c) take_any(choices[c]);
      first = last;
    }
    take_the_rest();
    return assign_inside();
  }

 private:
  ptrdiff_t first_position(uint32_t g) const { return ptrdiff_t{g} * group_; }
  uint32_t own_host(uint32_t g) const { return host_of_[size_t{g} * group_]; }

  Result<void> count_room() {
    size_t largest = 0, least = SIZE_MAX;
    for (const Indices& host : hosts_) {
      largest = std::max(largest, host.size());
      least = std::min(least, host.size());
    }
    const bool whole_hosts = group_ > largest;
    if (whole_hosts && largest != least) {
      return invalid(
          "place: hosts of {} and {} devices for groups of {} positions; expected "
          "hosts of one size",
          largest, least, group_);
    }
    const size_t each = whole_hosts ? (group_ + largest - 1) / largest : 1;
    need_.assign(groups_, each);
    size_t room = 0;
    for (const Indices& host : hosts_) {
      room_.push_back(whole_hosts ? 1 : host.size() / group_);
      room += room_.back();
    }
    if (room >= each * groups_) return {};
    return invalid("place: {} groups of {} positions, but the hosts have room for {}",
                   groups_, group_, room / each);
  }

  // How many bytes the positions of a group find on each host at best.
  std::map<uint32_t, int64_t> worth_of(uint32_t g) const {
    std::map<uint32_t, int64_t> sums;
    for (uint32_t p = g * group_; p < (g + 1) * group_; ++p) {
      std::unordered_map<uint32_t, int64_t> best;  // by host
      for (const auto& [kind, bytes] : overlaps_.bytes[overlaps_.kind_of_position[p]]) {
        for (const uint32_t d : overlaps_.devices_of_kind[kind]) {
          int64_t& most = best[host_of_[d]];
          most = std::max(most, bytes);
        }
      }
      for (const auto& [host, bytes] : best) sums[host] += bytes;
    }
    return sums;
  }

  // Groups are of one kind if their positions are of the same kinds.
  void find_kinds() {
    std::map<Indices, uint32_t> known;
    for (uint32_t g = 0; g < groups_; ++g) {
      const auto first = overlaps_.kind_of_position.begin() + first_position(g);
      const auto [entry, is_new] = known.try_emplace(
          Indices(first, first + group_), static_cast<uint32_t>(known.size()));
      if (is_new) members_.emplace_back();
      members_[entry->second].push_back(g);
      own_[{entry->second, own_host(g)}].push_back(g);
    }
    next_member_.resize(members_.size());
  }

  std::vector<Choice> best_first() const {
    std::vector<Choice> choices;
    for (uint32_t kind = 0; kind < members_.size(); ++kind) {
      for (const auto& [host, worth] : worth_of(members_[kind].front())) {
        choices.push_back({worth, kind, host});
      }
    }
    std::ranges::stable_sort(choices, std::greater{}, &Choice::worth);
    return choices;
  }

  void take_own(const Choice& choice) {
    const auto found = own_.find({choice.kind, choice.host});
    if (found == own_.end()) return;
    for (const uint32_t g : found->second) take(g, choice.host);
  }

  void take_any(const Choice& choice) {
    const Indices& members = members_[choice.kind];
    size_t& next = next_member_[choice.kind];
    while (room_[choice.host] > 0 && next < members.size()) {
      if (!take(members[next], choice.host)) ++next;
    }
  }

  // Groups that are left over take the host of their own number, or the next free one.
  void take_the_rest() {
    uint32_t free = 0;
    for (uint32_t g = 0; g < groups_; ++g) {
      take(g, own_host(g));
      while (need_[g] > 0) {
        if (!take(g, free)) ++free;
      }
    }
  }

  bool take(uint32_t g, uint32_t h) {
    if (need_[g] == 0 || room_[h] == 0) return false;
    --need_[g];
    --room_[h];
    hosts_of_[g].push_back(h);
    groups_of_[h].push_back(g);
    return true;
  }

  Indices assign_inside() const {
    Indices device_of_position(overlaps_.kind_of_position.size());
    for (uint32_t h = 0; h < hosts_.size(); ++h) {
      Indices positions, devices = hosts_[h];
      if (groups_of_[h].empty()) continue;
      if (hosts_of_[groups_of_[h].front()].size() > 1) {
        const Indices& all = hosts_of_[groups_of_[h].front()];
        if (all.front() != h) continue;  // this group was assigned with its first host
        for (const uint32_t other : std::span(all).subspan(1)) {
          devices.insert(devices.end(), hosts_[other].begin(), hosts_[other].end());
        }
      }
      for (const uint32_t g : groups_of_[h]) {
        for (uint32_t i = 0; i < group_; ++i) positions.push_back(g * group_ + i);
      }
      assign_cluster(positions, devices, device_of_position);
    }
    return device_of_position;
  }

  // First count the bytes on the device, then positions on the device of their number.
  void assign_cluster(const Indices& positions, const Indices& devices,
                      Indices& device_of_position) const {
    std::vector<std::vector<Int128>> worth(positions.size(),
                                           std::vector<Int128>(devices.size()));
    for (size_t r = 0; r < positions.size(); ++r) {
      for (size_t c = 0; c < devices.size(); ++c) {
        worth[r][c] = (Int128{overlaps_.held(positions[r], devices[c])} << 20) +
                      (positions[r] == devices[c] ? 1 : 0);
      }
    }
    const Assignment chosen = assign(worth);
    for (size_t r = 0; r < positions.size(); ++r) {
      device_of_position[positions[r]] = devices[chosen.column_of_row[r]];
    }
  }

  const Overlaps& overlaps_;
  uint32_t group_;
  uint32_t groups_ = 0;
  std::vector<Indices> hosts_;  // the devices of each host
  Indices host_of_;             // by device
  std::vector<size_t> need_;    // how many hosts each group still needs
  std::vector<size_t> room_;    // how many groups each host still has room for
  std::vector<Indices> groups_of_, hosts_of_;
  std::vector<Indices> members_;  // the groups of each kind
  std::vector<size_t> next_member_;
  std::map<std::pair<uint32_t, uint32_t>, Indices> own_;  // by kind and own host
};

}  // namespace

Result<Placement> place_greedily(const Collection& source, const Collection& target,
                                 const Topology& topology,
                                 const std::vector<Holder>& devices,
                                 const PlaceOptions& options) {
  const Overlaps overlaps =
      HOLDFAST_TRY(find_overlaps(source, target, topology, devices, options.positions));
  Placement placement;
  placement.device_of_position =
      HOLDFAST_TRY(GreedyPlacer(overlaps, devices, options.group).run());
  std::vector<bool> used(devices.size());
  for (uint32_t p = 0; p < options.positions; ++p) {
    const uint32_t device = placement.device_of_position[p];
    placement.kept += overlaps.held(p, device);
    used[device] = true;
  }
  for (uint32_t d = 0; d < devices.size(); ++d) {
    if (!used[d]) placement.released.push_back(d);
  }
  placement.kept_bound = bound_of(overlaps);
  placement.exact = placement.kept == placement.kept_bound;
  return placement;
}

}  // namespace holdfast

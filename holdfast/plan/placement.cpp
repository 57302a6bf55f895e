#include "holdfast/plan/placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "holdfast/plan/assignment.h"
#include "holdfast/plan/atoms.h"
#include "holdfast/plan/large_placement.h"

namespace holdfast {
namespace {

using Worth = std::vector<std::vector<Int128>>;  // position x device
using Indices = std::vector<uint32_t>;

// How many bytes of each position each device holds.
Result<std::vector<std::vector<int64_t>>> held_bytes(const Collection& source,
                                                     const Collection& target,
                                                     const Topology& topology,
                                                     const std::vector<Holder>& devices,
                                                     uint32_t positions) {
  const HolderTable table =
      HOLDFAST_TRY(HolderTable::merge(source.layout(), target.layout(), topology));
  std::unordered_map<std::string_view, uint32_t> device_named;
  for (uint32_t d = 0; d < devices.size(); ++d)
    device_named.emplace(devices[d].name, d);
  constexpr uint32_t kNone = UINT32_MAX;
  Indices device_of(table.holders.size(), kNone);
  for (HolderId h = 0; h < table.holders.size(); ++h) {
    const auto found = device_named.find(table.holders[h].name);
    if (found != device_named.end()) device_of[h] = found->second;
  }
  std::vector<std::vector<int64_t>> held(positions,
                                         std::vector<int64_t>(devices.size()));
  HOLDFAST_TRY(for_each_atom(source, target, table, [&](const Atom& atom) {
    for (const HolderPiece& wanted : atom.targets) {
      std::vector<int64_t>& row = held[target.layout().holder(wanted.piece)];
      for (const HolderPiece& owner : atom.sources) {
        if (device_of[owner.holder] != kNone)
          row[device_of[owner.holder]] += atom.bytes;
      }
    }
  }));
  return held;
}

// One number for each position and device, by which placements are compared. First
// count the bytes on the device. Then count (roughly) the bytes on the device's host,
// which have a shorter way. Then count positions that are on the device of their own
// number, so that nothing changes without need. Each of the three has enough bits for
// the sum over 2^13 positions.
Worth worth_of(const std::vector<std::vector<int64_t>>& held,
               const std::vector<Holder>& devices) {
  Worth worth(held.size(), std::vector<Int128>(devices.size()));
  for (uint32_t p = 0; p < held.size(); ++p) {
    std::map<HostId, int64_t> on_host;
    for (uint32_t d = 0; d < devices.size(); ++d)
      on_host[devices[d].host] += held[p][d];
    for (uint32_t d = 0; d < devices.size(); ++d) {
      const int64_t nearby = std::min(on_host[devices[d].host] >> 12, int64_t{1} << 30);
      worth[p][d] =
          (Int128{held[p][d]} << 58) + (Int128{nearby} << 14) + (p == d ? 1 : 0);
    }
  }
  return worth;
}

// Either one host with its groups, or one group with its hosts. Inside a cluster
// positions are assigned to devices exactly.
struct Cluster {
  Indices groups;
  Indices hosts;
  Int128 value = 0;
};

class Placer {
 public:
  Placer(const Worth& worth, const std::vector<Holder>& devices, uint32_t group)
      : worth_(worth), group_(group) {
    std::map<HostId, uint32_t> index;
    for (uint32_t d = 0; d < devices.size(); ++d) {
      const auto [at, is_new] =
          index.try_emplace(devices[d].host, static_cast<uint32_t>(hosts_.size()));
      if (is_new) hosts_.emplace_back();
      hosts_[at->second].push_back(d);
    }
    groups_ = static_cast<uint32_t>(worth.size()) / group;
  }

  Result<Indices> run() {
    size_t largest = 0;
    for (const Indices& host : hosts_) largest = std::max(largest, host.size());
    if (group_ <= largest) {
      HOLDFAST_TRY(groups_to_hosts());
      if (!exact_) improve(&Cluster::groups);
    } else {
      HOLDFAST_TRY(hosts_to_groups());
      improve(&Cluster::hosts);
    }
    return positions();
  }

  bool exact() const { return exact_; }

 private:
  Indices positions_of(const Cluster& cluster) const {
    Indices positions;
    for (const uint32_t g : cluster.groups) {
      for (uint32_t i = 0; i < group_; ++i) positions.push_back(g * group_ + i);
    }
    return positions;
  }

  Indices devices_of(const Cluster& cluster) const {
    Indices devices;
    for (const uint32_t h : cluster.hosts) {
      devices.insert(devices.end(), hosts_[h].begin(), hosts_[h].end());
    }
    return devices;
  }

  // The best assignment inside a cluster. If there are more positions than devices, as
  // when one host is tried for a part of a group, devices are the rows ("transposed").
  Assignment inner(const Cluster& cluster, bool& transposed) const {
    Indices rows = positions_of(cluster), columns = devices_of(cluster);
    transposed = rows.size() > columns.size();
    if (transposed) rows.swap(columns);
    Worth part(rows.size(), std::vector<Int128>(columns.size()));
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < columns.size(); ++c) {
        part[r][c] =
            transposed ? worth_[columns[c]][rows[r]] : worth_[rows[r]][columns[c]];
      }
    }
    return assign(part);
  }

  Int128 value_of(const Cluster& cluster) const {
    bool transposed = false;
    return inner(cluster, transposed).weight;
  }

  // Assigns groups (rows) to slots of hosts (columns). A host has a slot for each group
  // that fits on it.
  Result<void> groups_to_hosts() {
    Indices slots;
    exact_ = true;
    for (uint32_t h = 0; h < hosts_.size(); ++h) {
      const size_t room = hosts_[h].size() / group_;
      exact_ &= room <= 1;
      slots.insert(slots.end(), room, h);
    }
    if (slots.size() < groups_) {
      return invalid("place: {} groups of {} positions, but the hosts have room for {}",
                     groups_, group_, slots.size());
    }
    exact_ |= hosts_.size() == 1;
    Worth worth(groups_, std::vector<Int128>(slots.size()));
    for (uint32_t g = 0; g < groups_; ++g) {
      std::vector<Int128> of_host(hosts_.size());
      for (uint32_t h = 0; h < hosts_.size(); ++h) {
        if (hosts_[h].size() >= group_) of_host[h] = value_of({{g}, {h}});
      }
      for (size_t s = 0; s < slots.size(); ++s) worth[g][s] = of_host[slots[s]];
    }
    const Assignment chosen = assign(worth);
    clusters_.resize(hosts_.size());
    for (uint32_t h = 0; h < hosts_.size(); ++h) clusters_[h].hosts = {h};
    for (uint32_t g = 0; g < groups_; ++g) {
      clusters_[slots[chosen.column_of_row[g]]].groups.push_back(g);
    }
    for (const Indices& host : hosts_) room_.push_back(host.size() / group_);
    return {};
  }

  // Assigns hosts (columns) to groups. A group has as many rows as it needs hosts.
  Result<void> hosts_to_groups() {
    const size_t size = hosts_.front().size();
    for (const Indices& host : hosts_) {
      if (host.size() != size) {
        return invalid(
            "place: hosts of {} and {} devices for groups of {} positions; "
            "expected hosts of one size",
            size, host.size(), group_);
      }
    }
    const size_t each = (group_ + size - 1) / size;
    if (each * groups_ > hosts_.size()) {
      return invalid(
          "place: {} groups of {} positions need {} whole hosts, there are {}", groups_,
          group_, each * groups_, hosts_.size());
    }
    Worth worth(groups_ * each, std::vector<Int128>(hosts_.size()));
    for (uint32_t g = 0; g < groups_; ++g) {
      for (uint32_t h = 0; h < hosts_.size(); ++h) {
        const Int128 value = value_of({{g}, {h}});
        for (size_t k = 0; k < each; ++k) worth[g * each + k][h] = value;
      }
    }
    const Assignment chosen = assign(worth);
    clusters_.resize(groups_ + 1);  // the last one has the hosts that no group uses
    std::vector<bool> used(hosts_.size());
    for (uint32_t g = 0; g < groups_; ++g) {
      clusters_[g].groups = {g};
      for (size_t k = 0; k < each; ++k) {
        const uint32_t h = chosen.column_of_row[g * each + k];
        clusters_[g].hosts.push_back(h);
        used[h] = true;
      }
    }
    for (uint32_t h = 0; h < hosts_.size(); ++h) {
      if (!used[h]) clusters_.back().hosts.push_back(h);
    }
    for (const Cluster& cluster : clusters_) room_.push_back(cluster.hosts.size());
    return {};
  }

  // Swaps members of two clusters, or moves one to a cluster with room, while that adds
  // value. `many` says what is swapped: groups or hosts.
  void improve(Indices Cluster::*many) {
    for (Cluster& cluster : clusters_) cluster.value = value_of(cluster);
    bool better = true;
    while (better) {
      better = false;
      for (size_t a = 0; a < clusters_.size(); ++a) {
        for (size_t b = a + 1; b < clusters_.size(); ++b) {
          better |= try_swaps(clusters_[a], room_[a], clusters_[b], room_[b], many);
        }
      }
    }
  }

  bool try_swaps(Cluster& a, size_t room_a, Cluster& b, size_t room_b,
                 Indices Cluster::*many) {
    constexpr uint32_t kNothing = UINT32_MAX;
    Indices from_a = a.*many, from_b = b.*many;
    if ((b.*many).size() < room_b) from_b.push_back(kNothing);
    if ((a.*many).size() < room_a) from_a.push_back(kNothing);
    for (const uint32_t x : from_a) {
      for (const uint32_t y : from_b) {
        Cluster with_y = a, with_x = b;
        exchange(with_y.*many, x, y, kNothing);
        exchange(with_x.*many, y, x, kNothing);
        with_y.value = value_of(with_y);
        with_x.value = value_of(with_x);
        if (with_y.value + with_x.value > a.value + b.value) {
          a = std::move(with_y), b = std::move(with_x);
          return true;
        }
      }
    }
    return false;
  }

  static void exchange(Indices& members, uint32_t out, uint32_t in, uint32_t nothing) {
    if (out != nothing) members.erase(std::find(members.begin(), members.end(), out));
    if (in != nothing) members.push_back(in);
  }

  Indices positions() const {
    Indices device_of_position(worth_.size());
    for (const Cluster& cluster : clusters_) {
      if (cluster.groups.empty()) continue;
      bool transposed = false;
      const Assignment chosen = inner(cluster, transposed);
      HOLDFAST_CHECK(!transposed, "more positions than devices in a cluster");
      const Indices rows = positions_of(cluster), columns = devices_of(cluster);
      for (size_t r = 0; r < rows.size(); ++r) {
        device_of_position[rows[r]] = columns[chosen.column_of_row[r]];
      }
    }
    return device_of_position;
  }

  const Worth& worth_;
  uint32_t group_;
  uint32_t groups_ = 0;
  std::vector<Indices> hosts_;  // the devices of each host
  std::vector<Cluster> clusters_;
  std::vector<size_t> room_;  // how many groups (or hosts) each cluster can have
  bool exact_ = false;
};

int64_t kept_bytes(const std::vector<std::vector<int64_t>>& held,
                   const Indices& device_of_position) {
  int64_t kept = 0;
  for (size_t p = 0; p < held.size(); ++p) kept += held[p][device_of_position[p]];
  return kept;
}

}  // namespace

Result<Placement> place(const Collection& source, const Collection& target,
                        const Topology& topology, const std::vector<Holder>& devices,
                        const PlaceOptions& options) {
  if (options.positions > devices.size()) {
    return invalid("place: {} positions, but only {} devices", options.positions,
                   devices.size());
  }
  const std::vector<int64_t> wanted = target.bytes_held();
  for (size_t h = options.positions; h < wanted.size(); ++h) {
    if (wanted[h] > 0) {
      return invalid("place: {} holds something, but is not one of the {} positions",
                     target.layout().holders()[h].name, options.positions);
    }
  }
  if (options.group == 0 || options.positions % options.group != 0) {
    return invalid("place: {} positions do not divide into groups of {}",
                   options.positions, options.group);
  }
  if (options.positions > options.assigned_at_once) {
    Placement greedy =
        HOLDFAST_TRY(place_greedily(source, target, topology, devices, options));
    if (greedy.exact || options.positions > options.assigned_at_most) return greedy;
  }
  const auto held =
      HOLDFAST_TRY(held_bytes(source, target, topology, devices, options.positions));
  const Worth worth = worth_of(held, devices);
  Placement placement;
  const Indices free = assign(worth).column_of_row;
  placement.kept_bound = kept_bytes(held, free);
  if (options.group == 1) {
    placement.device_of_position = free;
    placement.exact = true;
  } else {
    Placer placer(worth, devices, options.group);
    placement.device_of_position = HOLDFAST_TRY(placer.run());
    placement.exact = placer.exact();
  }
  placement.kept = kept_bytes(held, placement.device_of_position);
  placement.exact |= placement.kept == placement.kept_bound;
  std::vector<bool> used(devices.size());
  for (const uint32_t d : placement.device_of_position) used[d] = true;
  for (uint32_t d = 0; d < devices.size(); ++d) {
    if (!used[d]) placement.released.push_back(d);
  }
  return placement;
}

}  // namespace holdfast

#include "holdfast/state/layout.h"

namespace holdfast {

Topology Topology::uniform(uint32_t count) {
  Topology topology;
  for (uint32_t h = 0; h < count; ++h) {
    topology.hosts.push_back({.name = fmt::format("host-{}", h)});
  }
  return topology;
}

int64_t Topology::bandwidth(const Holder& holder) const {
  for (const auto& [name, bandwidth] : bandwidth_of) {
    if (name == holder.name) return bandwidth;
  }
  return holder.kind == HolderKind::kMemory ? memory_bandwidth : file_bandwidth;
}

Distance distance_between(const Topology& topology, const Holder& from,
                          const Holder& to) {
  if (from.name == to.name) return Distance::kSame;
  const bool memory = from.kind == HolderKind::kMemory;
  if (from.host == to.host) return memory ? Distance::kHostMemory : Distance::kHostFile;
  const Host& source = topology.hosts[from.host];
  if (source.shared_storage) return Distance::kShared;
  if (!memory) return Distance::kFarFile;
  return source.island == topology.hosts[to.host].island ? Distance::kIsland
                                                         : Distance::kFar;
}

std::vector<Holder> make_devices(uint32_t hosts, uint32_t devices) {
  std::vector<Holder> holders;
  for (uint32_t h = 0; h < hosts; ++h) {
    for (uint32_t d = 0; d < devices; ++d) {
      holders.push_back({.name = fmt::format("device-{}", h * devices + d),
                         .kind = HolderKind::kMemory,
                         .host = h});
    }
  }
  return holders;
}

}  // namespace holdfast

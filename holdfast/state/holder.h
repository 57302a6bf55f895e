// Holders: whatever can hold bytes of a tensor (a device's memory, a file on a host's
// disk, a file on shared storage), and how far two holders are from each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

using HolderId = uint32_t;
using HostId = uint32_t;

enum class HolderKind : uint8_t {
  kMemory,  // a device's (or rank's) memory
  kFile,    // a file on the host's disk, or on shared storage
};

// Holders of two layouts are the same holder if they have the same name.
struct Holder {
  std::string name{};
  HolderKind kind = HolderKind::kMemory;
  HostId host = 0;

  friend bool operator==(const Holder&, const Holder&) = default;
};

// A machine, or shared storage. Shared storage counts as a host of its own, because
// every machine reaches it over the network.
struct Host {
  std::string name{};
  bool shared_storage = false;
  uint32_t island = 0;  // hosts of one rack or one fast network have the same number

  friend bool operator==(const Host&, const Host&) = default;
};

// How far a holder's bytes are from another holder, from near to far. A plan takes
// bytes from the nearest holders that have them.
enum class Distance : uint8_t {
  kSame,        // the holder itself
  kHostMemory,  // another memory of the same host
  kHostFile,    // a file of the same host
  kIsland,      // a memory of another host in the same island
  kFar,         // any other memory
  kShared,      // a file on shared storage
  kFarFile,     // a file on another host's disk
};

// The machines that a plan runs on. A bandwidth says how many bytes a second one holder
// can send; only the ratios matter, for balancing.
struct Topology {
  std::vector<Host> hosts;
  int64_t memory_bandwidth = 10'000'000'000;
  int64_t file_bandwidth = 2'000'000'000;
  // Bandwidths of single holders, by name, such as one with a slow link.
  std::vector<std::pair<std::string, int64_t>> bandwidth_of;

  // `count` hosts called host-0, host-1, ...
  static Topology uniform(uint32_t count);
  int64_t bandwidth(const Holder& holder) const;
};

// How far the bytes of `from` are from `to`.
Distance distance_between(const Topology& topology, const Holder& from,
                          const Holder& to);

// The memories of `devices` devices on each of `hosts` hosts. device-0 is on host-0.
std::vector<Holder> make_devices(uint32_t hosts, uint32_t devices);

}  // namespace holdfast

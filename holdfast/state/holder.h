// Who can hold bytes: a device's memory, a file on a host's disk, a file on shared
// storage; and how far two of them are from each other.
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

// Two layouts speak of the same holder if its name is the same.
struct Holder {
  std::string name{};
  HolderKind kind = HolderKind::kMemory;
  HostId host = 0;

  friend bool operator==(const Holder&, const Holder&) = default;
};

// A machine, or shared storage (which is a host of its own: reaching it crosses hosts).
struct Host {
  std::string name{};
  bool shared_storage = false;
  uint32_t island = 0;  // hosts of one rack or fast network

  friend bool operator==(const Host&, const Host&) = default;
};

// From near to far. Planning takes the nearest tier that has the bytes.
enum class Tier : uint8_t {
  kSame,        // the holder itself
  kHostMemory,  // another memory of the same host
  kHostFile,    // a file of the same host
  kIsland,      // a memory of another host in the same island
  kFar,         // any other memory
  kShared,      // a file on shared storage
  kFarFile,     // a file on another host's disk
};

// The machines a plan runs on. Bandwidths are bytes a second that one holder can send;
// only their ratios matter for balancing.
struct Topology {
  std::vector<Host> hosts;
  int64_t memory_bandwidth = 10'000'000'000;
  int64_t file_bandwidth = 2'000'000'000;
  // Exceptions by holder name: a slow link.
  std::vector<std::pair<std::string, int64_t>> bandwidth_of;

  // `count` hosts called host-0, host-1, ...
  static Topology uniform(uint32_t count);
  int64_t bandwidth(const Holder& holder) const;
};

// How far `to` has to reach for what `from` holds.
Tier tier_between(const Topology& topology, const Holder& from, const Holder& to);

// `hosts` x `devices` memories, device-0 on host-0 first.
std::vector<Holder> make_devices(uint32_t hosts, uint32_t devices);

}  // namespace holdfast

#include "holdfast/plan/route.h"

#include <algorithm>

namespace holdfast {
namespace {

bool share_any(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return std::ranges::any_of(
      a, [&](uint32_t x) { return std::binary_search(b.begin(), b.end(), x); });
}

}  // namespace

uint32_t Router::route(const Atom& atom, std::span<const HolderPiece> needs,
                       std::vector<Receiver>& out) {
  bytes_ = atom.bytes;
  base_ = out.size();
  ++turn_;
  group_by_host(atom, needs);
  const auto importing = static_cast<uint32_t>(
      std::ranges::count_if(hosts_, [](const HostNeeds& h) { return !h.local; }));
  if (!forwarding_) {
    route_directly(atom, out);
    return importing;
  }
  chains_.clear();
  for (const HostNeeds& host : hosts_) {
    if (host.local) route_local(host, out);
  }
  // Hosts with near sources come first. The chains that they start can then serve the
  // hosts that are farther away, while a chain of a far host would be a detour for a
  // near one.
  std::vector<const HostNeeds*> importers;
  for (const HostNeeds& host : hosts_) {
    if (!host.local) importers.push_back(&host);
  }
  std::ranges::stable_sort(importers, {},
                           [](const HostNeeds* host) { return host->distance; });
  for (const HostNeeds* host : importers) route_import(*host, out);
  return importing;
}

void Router::group_by_host(const Atom& atom, std::span<const HolderPiece> needs) {
  needs_.assign(needs.begin(), needs.end());
  std::stable_sort(needs_.begin(), needs_.end(),
                   [&](const HolderPiece& a, const HolderPiece& b) {
                     // Memories come first: they pass bytes on faster than files.
                     const Holder &x = holders_[a.holder], &y = holders_[b.holder];
                     return std::pair(x.host, x.kind) < std::pair(y.host, y.kind);
                   });
  hosts_.clear();
  for (uint32_t i = 0; i < needs_.size(); ++i) {
    const HostId host = holders_[needs_[i].holder].host;
    if (hosts_.empty() || hosts_.back().host != host) {
      hosts_.push_back({host, i, i, {}, Distance::kSame, false});
      hosts_.back().distance =
          nearest_sources(atom, holders_[needs_[i].holder], hosts_.back().senders);
      hosts_.back().local = holders_[hosts_.back().senders.front()].host == host;
    }
    hosts_.back().last = i + 1;
  }
}

Distance Router::nearest_sources(const Atom& atom, const Holder& to,
                                 std::vector<uint32_t>& senders) const {
  Distance nearest = Distance::kFarFile;
  for (const HolderPiece& source : atom.sources) {
    const Distance distance = distance_between(topology_, holders_[source.holder], to);
    if (distance < nearest) nearest = distance, senders.clear();
    if (distance == nearest) senders.push_back(source.holder);
  }
  return nearest;
}

void Router::route_directly(const Atom& atom, std::vector<Receiver>& out) {
  for (const HostNeeds& host : hosts_) {
    const auto candidates = balancer_.class_of(host.senders);
    balancer_.demand(candidates, atom.bytes * (host.last - host.first));
    for (uint32_t i = host.first; i < host.last; ++i) {
      out.push_back({needs_[i], kFromSource, candidates});
    }
  }
}

// Starts as many chains as the host has sources. A file that no memory of its chain can
// serve receives the atom from the sources, because they are nearer than another file.
void Router::route_local(const HostNeeds& host, std::vector<Receiver>& out) {
  const auto count =
      std::min(static_cast<uint32_t>(host.senders.size()), host.last - host.first);
  const auto candidates = balancer_.class_of(host.senders);
  const size_t first = chains_.size();
  for (uint32_t c = 0; c < count; ++c) chains_.push_back({host.senders, kNobody});
  for (uint32_t i = host.first; i < host.last; ++i) {
    Chain& chain = chains_[first + (i - host.first) % count];
    const uint32_t parent = chain.end == kNobody ? kFromSource : chain.end;
    if (parent == kFromSource) balancer_.demand(candidates, bytes_);
    receive(needs_[i], parent, candidates, chain, out);
  }
}

// Imports the atom to a host. It comes from a source if no source has to send it twice
// for that, else from the end of a chain that started at one of these sources. One
// device of the host imports, and the others get the atom from it in a chain.
void Router::route_import(const HostNeeds& host, std::vector<Receiver>& out) {
  size_t hanging = 0;
  Chain* free = nullptr;
  for (Chain& chain : chains_) {
    if (!share_any(chain.senders, host.senders)) continue;
    ++hanging;
    if (chain.end != kNobody && (!free || chain.end < free->end)) free = &chain;
  }
  uint32_t parent = kFromSource;
  Balancer::ClassId candidates = 0;
  if (hanging < host.senders.size() || !free) {
    candidates = balancer_.class_of(host.senders);
    balancer_.demand(candidates, bytes_);
    chains_.push_back({host.senders, kNobody});
    free = &chains_.back();
  } else {
    parent = free->end;
  }
  const uint32_t count = host.last - host.first;
  const bool memories =
      holders_[needs_[host.last - 1].holder].kind == HolderKind::kMemory;
  const auto shift = memories ? static_cast<uint32_t>(turn_ % count) : 0;
  for (uint32_t i = 0; i < count; ++i) {
    parent = receive(needs_[host.first + (i + shift) % count], parent, candidates,
                     *free, out);
  }
}

// Adds a receiver and returns the receiver that passes the atom on next on its host.
// That is a memory if there is one. A file never passes the atom on to another host,
// because it would have to be read back.
uint32_t Router::receive(const HolderPiece& to, uint32_t parent,
                         Balancer::ClassId candidates, Chain& chain,
                         std::vector<Receiver>& out) {
  out.push_back({to, parent, candidates});
  const auto number = static_cast<uint32_t>(out.size() - base_ - 1);
  const Holder& holder = holders_[to.holder];
  if (holder.kind == HolderKind::kMemory) return chain.end = number;
  if (parent == kFromSource) return number;
  const Holder& giver = holders_[out[base_ + parent].to.holder];
  const bool near = giver.kind == HolderKind::kMemory && giver.host == holder.host;
  return near ? parent : number;
}

}  // namespace holdfast

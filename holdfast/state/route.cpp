#include "holdfast/state/route.h"

#include <algorithm>
#include <deque>

namespace holdfast {
namespace {

bool share_any(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return std::ranges::any_of(a, [&](uint32_t x) {
    return std::binary_search(b.begin(), b.end(), x);
  });
}

}  // namespace

uint32_t Router::route(const Atom& atom, std::span<const Held> needs,
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
  tails_.clear();
  for (const HostNeeds& host : hosts_) {
    if (host.local) route_local(host, out);
  }
  // Hosts that reach for the same sources are served together.
  std::vector<const HostNeeds*> pending, group, rest;
  for (const HostNeeds& host : hosts_) {
    if (!host.local) pending.push_back(&host);
  }
  while (!pending.empty()) {
    group.clear(), rest.clear();
    for (const HostNeeds* host : pending) {
      (host->senders == pending.front()->senders ? group : rest).push_back(host);
    }
    route_imports(group, out);
    pending.swap(rest);
  }
  return importing;
}

void Router::group_by_host(const Atom& atom, std::span<const Held> needs) {
  needs_.assign(needs.begin(), needs.end());
  std::stable_sort(needs_.begin(), needs_.end(), [&](const Held& a, const Held& b) {
    // Memories before files: they are the better ones to pass things on.
    const Holder &x = holders_[a.holder], &y = holders_[b.holder];
    return std::pair(x.host, x.kind) < std::pair(y.host, y.kind);
  });
  hosts_.clear();
  for (uint32_t i = 0; i < needs_.size(); ++i) {
    const HostId host = holders_[needs_[i].holder].host;
    if (hosts_.empty() || hosts_.back().host != host) {
      hosts_.push_back({host, i, i, {}, false});
      nearest_sources(atom, holders_[needs_[i].holder], hosts_.back().senders);
      hosts_.back().local = holders_[hosts_.back().senders.front()].host == host;
    }
    hosts_.back().last = i + 1;
  }
}

void Router::nearest_sources(const Atom& atom, const Holder& to,
                             std::vector<uint32_t>& senders) const {
  Tier nearest = Tier::kFarFile;
  for (const Held& source : atom.sources) {
    const Tier tier = tier_between(topology_, holders_[source.holder], to);
    if (tier < nearest) nearest = tier, senders.clear();
    if (tier == nearest) senders.push_back(source.holder);
  }
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

// As many chains as there are sources on the host.
void Router::route_local(const HostNeeds& host, std::vector<Receiver>& out) {
  const auto chains = std::min(static_cast<uint32_t>(host.senders.size()),
                               host.last - host.first);
  const auto candidates = balancer_.class_of(host.senders);
  balancer_.demand(candidates, bytes_ * chains);
  const auto first = static_cast<uint32_t>(out.size() - base_);
  for (uint32_t i = host.first; i < host.last; ++i) {
    const uint32_t k = i - host.first;
    const uint32_t parent = k < chains ? kFromSource : first + k - chains;
    out.push_back({needs_[i], parent, candidates});
  }
  const auto end = static_cast<uint32_t>(out.size() - base_);
  for (uint32_t c = 0; c < chains; ++c) tails_.push_back({host.senders, end - 1 - c});
}

// Sources serve as many hosts as they can without sending the atom twice; the ends of
// chains serve the others.
void Router::route_imports(std::span<const HostNeeds*> hosts,
                           std::vector<Receiver>& out) {
  const std::vector<uint32_t>& senders = hosts.front()->senders;
  std::deque<uint32_t> ends;
  for (const Tail& tail : tails_) {
    if (share_any(tail.senders, senders)) ends.push_back(tail.receiver);
  }
  size_t direct = senders.size() > ends.size() ? senders.size() - ends.size() : 0;
  for (const HostNeeds* host : hosts) {
    uint32_t parent = kFromSource;
    if (direct > 0) {
      --direct;
    } else {
      parent = ends.front();
      ends.pop_front();
    }
    ends.push_back(import_to(*host, parent, senders, out));
  }
}

// One device of the host imports, the others take it from each other. Returns the last.
uint32_t Router::import_to(const HostNeeds& host, uint32_t parent,
                           const std::vector<uint32_t>& senders,
                           std::vector<Receiver>& out) {
  const uint32_t count = host.last - host.first;
  const bool memories =
      holders_[needs_[host.last - 1].holder].kind == HolderKind::kMemory;
  const auto shift = memories ? static_cast<uint32_t>(turn_ % count) : 0;
  Balancer::ClassId candidates = 0;
  if (parent == kFromSource) {
    candidates = balancer_.class_of(senders);
    balancer_.demand(candidates, bytes_);
  }
  for (uint32_t i = 0; i < count; ++i) {
    out.push_back({needs_[host.first + (i + shift) % count], parent, candidates});
    parent = static_cast<uint32_t>(out.size() - base_ - 1);
  }
  return parent;
}

}  // namespace holdfast

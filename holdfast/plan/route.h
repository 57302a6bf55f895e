// Who gives an atom to whom: sources, or receivers that pass it on. Internal to
// planning.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/plan/atoms.h"
#include "holdfast/plan/balance.h"

namespace holdfast {

inline constexpr uint32_t kFromSource = UINT32_MAX;

// A holder that has to get an atom.
struct Receiver {
  Held to;
  uint32_t parent;               // an earlier receiver of the atom, or kFromSource
  Balancer::ClassId candidates;  // the sources that may serve it, if kFromSource
};

// Routes one atom after the other. Keeps scratch memory; not thread safe.
class Router {
 public:
  Router(const std::vector<Holder>& holders, const Topology& topology, bool forwarding,
         Balancer& balancer)
      : holders_(holders),
        topology_(topology),
        forwarding_(forwarding),
        balancer_(balancer) {}

  // Appends the receivers among `needs` (ascending by holder) in an order in which each
  // comes after its parent, and adds the sources' share to the balancer's demands.
  // Returns how many hosts have to import the atom.
  uint32_t route(const Atom& atom, std::span<const Held> needs,
                 std::vector<Receiver>& out);

 private:
  struct HostNeeds {
    HostId host;
    uint32_t first, last;           // in needs_
    std::vector<uint32_t> senders;  // the nearest sources
    Distance distance;              // how near
    bool local;                     // on this host
  };

  // Receivers that hang on each other, the first on a source.
  static constexpr uint32_t kNobody = UINT32_MAX;
  struct Chain {
    std::vector<uint32_t> senders;  // the sources that may serve it
    uint32_t end;                   // who passes on next, or kNobody
  };

  void group_by_host(const Atom& atom, std::span<const Held> needs);
  Distance nearest_sources(const Atom& atom, const Holder& to,
                           std::vector<uint32_t>& senders) const;
  void route_directly(const Atom& atom, std::vector<Receiver>& out);
  void route_local(const HostNeeds& host, std::vector<Receiver>& out);
  void route_import(const HostNeeds& host, std::vector<Receiver>& out);
  uint32_t receive(const Held& to, uint32_t parent, Balancer::ClassId candidates,
                   Chain& chain, std::vector<Receiver>& out);

  const std::vector<Holder>& holders_;
  const Topology& topology_;
  bool forwarding_;
  Balancer& balancer_;

  uint64_t turn_ = 0;  // which device of a host imports: they take turns
  int64_t bytes_ = 0;
  size_t base_ = 0;  // where this atom's receivers begin in `out`
  std::vector<Held> needs_;
  std::vector<HostNeeds> hosts_;
  std::vector<Chain> chains_;
};

}  // namespace holdfast

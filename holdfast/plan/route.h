// Routes: which holder gives an atom to which. It comes from a source, or from a
// receiver that passes it on. Internal to planning.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/plan/atoms.h"
#include "holdfast/plan/balance.h"

namespace holdfast {

inline constexpr uint32_t kFromSource = UINT32_MAX;

// A holder that has to receive an atom.
struct Receiver {
  HolderPiece to;
  uint32_t parent;               // an earlier receiver of the atom, or kFromSource
  Balancer::ClassId candidates;  // the sources that may send it, if kFromSource
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

  // Appends a receiver for each of `needs` (ascending by holder). Each receiver comes
  // after its parent. What sources must send is added to the balancer's demands.
  // Returns how many hosts have to import the atom.
  uint32_t route(const Atom& atom, std::span<const HolderPiece> needs,
                 std::vector<Receiver>& out);

 private:
  // The holders of one host that need the atom.
  struct HostNeeds {
    HostId host;
    uint32_t first, last;           // the holders are needs_[first, last)
    std::vector<uint32_t> senders;  // the nearest sources
    Distance distance;              // how far these sources are
    bool local;                     // the sources are on this host
  };

  // Receivers of which each passes the atom on to the next. The first one receives it
  // from a source.
  static constexpr uint32_t kNobody = UINT32_MAX;
  struct Chain {
    std::vector<uint32_t> senders;  // the sources that may send to the first receiver
    uint32_t end;                   // the receiver that passes on next, or kNobody
  };

  void group_by_host(const Atom& atom, std::span<const HolderPiece> needs);
  Distance nearest_sources(const Atom& atom, const Holder& to,
                           std::vector<uint32_t>& senders) const;
  void route_directly(const Atom& atom, std::vector<Receiver>& out);
  void route_local(const HostNeeds& host, std::vector<Receiver>& out);
  void route_import(const HostNeeds& host, std::vector<Receiver>& out);
  uint32_t receive(const HolderPiece& to, uint32_t parent, Balancer::ClassId candidates,
                   Chain& chain, std::vector<Receiver>& out);

  const std::vector<Holder>& holders_;
  const Topology& topology_;
  bool forwarding_;
  Balancer& balancer_;

  uint64_t turn_ = 0;  // counts atoms, so that a host's devices import in turn
  int64_t bytes_ = 0;  // of the current atom
  size_t base_ = 0;    // where the current atom's receivers begin in `out`
  std::vector<HolderPiece> needs_;
  std::vector<HostNeeds> hosts_;
  std::vector<Chain> chains_;
};

}  // namespace holdfast

#include "holdfast/plan/plan.h"

#include <algorithm>
#include <map>

#include "holdfast/base/bytes.h"
#include "holdfast/base/int128.h"
#include "holdfast/plan/atoms.h"
#include "holdfast/plan/balance.h"
#include "holdfast/plan/route.h"
#include "holdfast/state/strided.h"

namespace holdfast {
namespace {

// An atom that some holders have to receive. It is kept until the balance is solved.
struct Job {
  TensorId tensor;
  uint32_t box;        // index into Plan::boxes
  uint32_t sources;    // its first one in Planner::sources_; they end at the next job's
  uint32_t receivers;  // its first one in Planner::receivers_, in the same way
};

// Bytes of a tensor that a holder already has in place. Used for the memory figures.
struct Kept {
  TensorId tensor;
  HolderId holder;
  int64_t bytes;
};

bool same_place(const Map& a, const Map& b, const Box& box) {
  if (a.offset != b.offset) return false;
  for (int k = 0; k < box.rank(); ++k) {
    const auto i = static_cast<size_t>(k);
    if (box.size(k) > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

int64_t nanoseconds(int64_t bytes, int64_t bandwidth) {
  return static_cast<int64_t>(Int128{bytes} * 1'000'000'000 / bandwidth);
}

std::vector<int64_t> bandwidths(const HolderTable& table, const Topology& topology) {
  std::vector<int64_t> result;
  for (const Holder& holder : table.holders) {
    result.push_back(topology.bandwidth(holder));
  }
  return result;
}

// Makes a plan in two passes over the atoms. The first pass finds who receives what and
// from which possible senders, so that the balance can be solved for all together. The
// second pass makes the moves.
class Planner {
 public:
  Planner(const Collection& source, const Collection& target, const Topology& topology,
          HolderTable table, const PlanOptions& options)
      : source_(source),
        target_(target),
        topology_(topology),
        table_(std::move(table)),
        balancer_(bandwidths(table_, topology)),
        router_(table_.holders, topology, options.forwarding, balancer_) {
    plan_.loads.resize(table_.holders.size());
  }

  Result<Plan> run() && {
    HOLDFAST_TRY(for_each_atom(source_, target_, table_,
                               [this](const Atom& atom) { collect(atom); }));
    jobs_.push_back({0, 0, static_cast<uint32_t>(sources_.size()),
                     static_cast<uint32_t>(receivers_.size())});
    balancer_.solve();
    for (size_t j = 0; j + 1 < jobs_.size(); ++j) emit(jobs_[j], jobs_[j + 1]);
    count_memory();
    count_time();
    list_links();
    plan_.holders = std::move(table_.holders);
    return std::move(plan_);
  }

 private:
  uint32_t add_box(const Box& box) {
    plan_.boxes.push_back(box);
    return static_cast<uint32_t>(plan_.boxes.size() - 1);
  }

  void collect(const Atom& atom) {
    plan_.figures.needed += atom.bytes * static_cast<int64_t>(atom.targets.size());
    needs_.clear();
    uint32_t box = kNoMove;  // added to the plan when it is first needed
    const HolderPiece* source = atom.sources.data();
    const HolderPiece* end = source + atom.sources.size();
    for (const HolderPiece& target : atom.targets) {
      while (source != end && source->holder < target.holder) ++source;
      if (source != end && source->holder == target.holder) {
        keep(atom, *source, target, box);
      } else {
        needs_.push_back(target);
      }
    }
    if (needs_.empty()) return;
    plan_.figures.moved_bound += atom.bytes * static_cast<int64_t>(needs_.size());
    if (box == kNoMove) box = add_box(atom.box);
    jobs_.push_back({atom.tensor, box, static_cast<uint32_t>(sources_.size()),
                     static_cast<uint32_t>(receivers_.size())});
    sources_.insert(sources_.end(), atom.sources.begin(), atom.sources.end());
    const uint32_t imports = router_.route(atom, needs_, receivers_);
    plan_.figures.crossing_bound += atom.bytes * imports;
  }

  // The holder already has the atom: it stays in place, or is copied inside the memory.
  void keep(const Atom& atom, const HolderPiece& from, const HolderPiece& to,
            uint32_t& box) {
    const int64_t element = bytes_of(target_.tensor(atom.tensor).dtype);
    const Layout &old = source_.layout(), &fresh = target_.layout();
    const Map a = old.map(from.piece, element).narrowed(old.box(from.piece), atom.box);
    const Map b = fresh.map(to.piece, element).narrowed(fresh.box(to.piece), atom.box);
    if (same_place(a, b, atom.box)) {
      plan_.figures.in_place += atom.bytes;
      kept_.push_back({atom.tensor, to.holder, atom.bytes});
      return;
    }
    plan_.figures.copied += atom.bytes;
    if (box == kNoMove) box = add_box(atom.box);
    plan_.moves.push_back(
        {atom.tensor, box, from.piece, to.piece, from.holder, to.holder, kNoMove});
  }

  void emit(const Job& job, const Job& next) {
    const std::span sources(sources_.data() + job.sources, next.sources - job.sources);
    filled_.clear();
    for (uint32_t r = job.receivers; r < next.receivers; ++r) {
      const Receiver& receiver = receivers_[r];
      const auto first = static_cast<uint32_t>(plan_.moves.size());
      if (receiver.parent == kFromSource) {
        fill_from_sources(job, sources, receiver);
      } else {
        fill_from_parent(job, receiver, receivers_[job.receivers + receiver.parent]);
      }
      filled_.push_back({first, static_cast<uint32_t>(plan_.moves.size())});
    }
  }

  void fill_from_sources(const Job& job, std::span<const HolderPiece> sources,
                         const Receiver& receiver) {
    const int64_t element = bytes_of(target_.tensor(job.tensor).dtype);
    const Box whole = plan_.boxes[job.box];
    parts_.clear();
    balancer_.draw(receiver.candidates, whole, element, parts_);
    for (const Balancer::Part& part : parts_) {
      const HolderPiece from =
          *std::ranges::lower_bound(sources, part.sender, {}, &HolderPiece::holder);
      const uint32_t box = part.box == whole ? job.box : add_box(part.box);
      add_move({job.tensor, box, from.piece, receiver.to.piece, from.holder,
                receiver.to.holder, kNoMove});
    }
  }

  // Passes on the parts that the parent receives, each after the move that brings it.
  void fill_from_parent(const Job& job, const Receiver& receiver,
                        const Receiver& parent) {
    const auto [first, last] = filled_[receiver.parent];
    for (uint32_t m = first; m < last; ++m) {
      add_move({job.tensor, plan_.moves[m].box, parent.to.piece, receiver.to.piece,
                parent.to.holder, receiver.to.holder, m});
    }
  }

  void add_move(const Move& move) {
    const int64_t bytes =
        plan_.boxes[move.box].elements() * bytes_of(target_.tensor(move.tensor).dtype);
    const HostId from = table_.holders[move.from_holder].host;
    const HostId to = table_.holders[move.to_holder].host;
    const bool forwarded = move.after != kNoMove;
    plan_.moves.push_back(move);
    plan_.figures.moved += bytes;
    plan_.figures.forwarded += forwarded ? bytes : 0;
    plan_.figures.crossing += from != to ? bytes : 0;
    HolderLoad& sender = plan_.loads[move.from_holder];
    (forwarded ? sender.forwarded : sender.sent) += bytes;
    plan_.loads[move.to_holder].received += bytes;
    links_[{from, to}] += bytes;
  }

  void count_time() {
    for (size_t h = 0; h < table_.holders.size(); ++h) {
      plan_.figures.egress_ns = std::max(
          plan_.figures.egress_ns,
          nanoseconds(plan_.loads[h].sent, topology_.bandwidth(table_.holders[h])));
    }
    const Balancer::Ratio best = balancer_.optimum();
    plan_.figures.egress_bound_ns = nanoseconds(best.bytes, best.bandwidth);
  }

  void count_memory() {
    const size_t n = table_.holders.size();
    std::vector<int64_t> old(n), fresh(n), in_place(n);
    const std::vector<int64_t> held = source_.bytes_held(),
                               wanted = target_.bytes_held();
    std::copy(held.begin(), held.end(), old.begin());
    for (size_t h = 0; h < wanted.size(); ++h) fresh[table_.of_target[h]] += wanted[h];
    for (const Kept& kept : kept_) in_place[kept.holder] += kept.bytes;
    const std::vector<int64_t> peak = peak_by_tensor(old);
    for (size_t h = 0; h < n; ++h) {
      if (table_.holders[h].kind != HolderKind::kMemory) continue;
      const int64_t resident = std::max(old[h], fresh[h]);
      Figures& figures = plan_.figures;
      figures.extra_memory =
          std::max(figures.extra_memory, old[h] + fresh[h] - in_place[h] - resident);
      figures.extra_memory_by_tensor =
          std::max(figures.extra_memory_by_tensor, peak[h] - resident);
    }
  }

  // The most bytes that each holder has at any time, if a tensor's new pieces are
  // created before its old ones are freed.
  std::vector<int64_t> peak_by_tensor(std::vector<int64_t> resident) const {
    std::vector<int64_t> peak = resident;
    // A source tensor is freed after the last target tensor that is made of it.
    std::vector<TensorId> last_user(source_.tensors().size());
    for (TensorId t = 0; t < target_.tensors().size(); ++t) {
      last_user[*source_.find(target_.tensor(t).name)] = t;
    }
    auto kept = kept_.begin();
    for (TensorId t = 0; t < target_.tensors().size(); ++t) {
      const TensorId s = *source_.find(target_.tensor(t).name);
      // Bytes in place are resident already, and add_pieces() counts them again.
      for (; kept != kept_.end() && kept->tensor == t; ++kept) {
        resident[kept->holder] -= kept->bytes;
      }
      add_pieces(target_, t, table_.of_target, +1, resident);
      for (size_t h = 0; h < peak.size(); ++h) peak[h] = std::max(peak[h], resident[h]);
      if (last_user[s] == t) add_pieces(source_, s, {}, -1, resident);
      for (auto back = kept; back != kept_.begin() && (--back)->tensor == t;) {
        resident[back->holder] += back->bytes;
      }
    }
    return peak;
  }

  static void add_pieces(const Collection& collection, TensorId t,
                         std::span<const HolderId> number, int64_t sign,
                         std::vector<int64_t>& resident) {
    const Layout& layout = collection.layout();
    const int64_t element = bytes_of(collection.tensor(t).dtype);
    for (const Slice& slice : layout.slices(t)) {
      const int64_t bytes = sign * slice.box.elements() * element;
      for (PieceId p = slice.first; p < slice.last; ++p) {
        const HolderId h = layout.holder(p);
        resident[number.empty() ? h : number[h]] += bytes;
      }
    }
  }

  void list_links() {
    for (const auto& [ends, bytes] : links_) {
      plan_.links.push_back({ends.first, ends.second, bytes});
    }
  }

  const Collection& source_;
  const Collection& target_;
  const Topology& topology_;
  HolderTable table_;
  Balancer balancer_;
  Router router_;
  Plan plan_;

  std::vector<Job> jobs_;
  std::vector<HolderPiece> sources_;
  std::vector<Receiver> receivers_;
  std::vector<Kept> kept_;
  std::map<std::pair<HostId, HostId>, int64_t> links_;

  std::vector<HolderPiece> needs_;     // scratch memory of collect()
  std::vector<Balancer::Part> parts_;  // scratch memory of emit()
  // The range of moves that fill each receiver of the current job.
  std::vector<std::pair<uint32_t, uint32_t>> filled_;
};

}  // namespace

Result<Plan> plan(const Collection& source, const Collection& target,
                  const Topology& topology, const PlanOptions& options) {
  HolderTable table =
      HOLDFAST_TRY(HolderTable::merge(source.layout(), target.layout(), topology,
                                      options.new_holders));
  return Planner(source, target, topology, std::move(table), options).run();
}

StridedCopy copy_of(const Plan& plan, const Move& move, const Collection& source,
                    const Collection& target) {
  const int64_t element = bytes_of(target.tensor(move.tensor).dtype);
  const Box& box = plan.boxes[move.box];
  const Layout& fresh = target.layout();
  const Layout& from = move.after == kNoMove ? source.layout() : fresh;
  return plan_copy(from.map(move.from, element).narrowed(from.box(move.from), box),
                   fresh.map(move.to, element).narrowed(fresh.box(move.to), box),
                   box.shape(), element);
}

}  // namespace holdfast

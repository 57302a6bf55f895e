// The common refinement of two layouts: the regions in which every holder, old and new,
// has or wants all or nothing. Planning, placing and bounding all walk these atoms.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "holdfast/state/collection.h"

namespace holdfast {

// One holder's copy, by the holder's number in the common table.
struct Held {
  HolderId holder;
  PieceId piece;  // of the source or the target layout
  friend auto operator<=>(const Held&, const Held&) = default;
};

struct Atom {
  TensorId tensor;  // of the target
  TensorId source_tensor;
  Box box;
  int64_t bytes;
  std::span<const Held> sources;  // who has it, in order of holder; never empty
  std::span<const Held> targets;  // who shall have it
};

// The holders of two layouts in one numbering: the source's, then the target's that are
// not among them. Same name, same holder.
struct HolderTable {
  std::vector<Holder> holders;
  std::vector<HolderId> of_target;  // target's number -> common number

  // Fails if a name stands for two kinds or hosts, or a host is not in the topology.
  static Result<HolderTable> merge(const Layout& source, const Layout& target,
                                   const Topology& topology);
};

// Calls visit for each atom, in order of the target's tensors; the atoms of one tensor are
// disjoint and fill the union of its target boxes. The spans live until the next tensor.
// Fails, naming the tensor: with kNotFound if the source has no such tensor or nobody holds
// a box of it, with kInvalid if it has another shape, dtype or tie there, and with
// kUnsupported if boxes overlap in millions of ways.
Result<void> for_each_atom(const Collection& source, const Collection& target,
                           const HolderTable& table,
                           const std::function<void(const Atom&)>& visit);

}  // namespace holdfast

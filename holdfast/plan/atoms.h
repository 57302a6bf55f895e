// Atoms: the common refinement of two layouts. An atom is a region of which every
// holder of the old layout has all or nothing, and every holder of the new layout needs
// all or nothing. plan() and place() work on atoms.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "holdfast/state/collection.h"

namespace holdfast {

// A holder's piece. The holder is given by its number in the common table
// (HolderTable).
struct HolderPiece {
  HolderId holder;
  PieceId piece;  // in the source layout or in the target layout
  friend auto operator<=>(const HolderPiece&, const HolderPiece&) = default;
};

struct Atom {
  TensorId tensor;  // in the target
  TensorId source_tensor;
  Box box;
  int64_t bytes;
  std::span<const HolderPiece> sources;  // have the atom; by holder, never empty
  std::span<const HolderPiece> targets;  // shall have the atom; by holder
};

// The holders of two layouts with common numbers: first those of the source, then those
// of the target that the source does not have. Holders of the same name are the same
// holder, unless all of the target's are new.
struct HolderTable {
  std::vector<Holder> holders;
  std::vector<HolderId> of_target;  // the common number, by the target's number

  // Fails if a name stands for two kinds or hosts, or a host is not in the topology.
  static Result<HolderTable> merge(const Layout& source, const Layout& target,
                                   const Topology& topology, bool all_new = false);
};

// Calls visit for each atom, in order of the target's tensors. The atoms of one tensor
// are disjoint and fill the union of its boxes in the target. An atom's spans are valid
// until the next tensor. Fails, naming the tensor: with kNotFound if the source has no
// such tensor or no holder of a box of it, with kInvalid if it has another shape, dtype
// or alias there, and with kUnsupported if boxes overlap in millions of ways.
Result<void> for_each_atom(const Collection& source, const Collection& target,
                           const HolderTable& table,
                           const std::function<void(const Atom&)>& visit);

}  // namespace holdfast

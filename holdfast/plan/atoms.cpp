#include "holdfast/plan/atoms.h"

#include <algorithm>
#include <unordered_map>

#include "holdfast/state/box_index.h"

namespace holdfast {
namespace {

// One tensor of one layout, as disjoint cells with their holders.
struct Cells {
  std::vector<Box> boxes;
  std::vector<uint32_t> first{0};  // indices of held: one for each cell, then the end
  std::vector<HolderPiece> held;

  std::span<const HolderPiece> holders(size_t cell) const {
    return {held.data() + first[cell], first[cell + 1] - first[cell]};
  }
};

// `number` gives the common number of the layout's holder.
template <typename Number>
Result<Cells> cells_of(const Layout& layout, TensorId tensor, Number&& number) {
  const auto slices = layout.slices(tensor);
  Cells cells;
  for (const Cell& cell : HOLDFAST_TRY(refine(layout.boxes(tensor)))) {
    cells.boxes.push_back(cell.box);
    for (const uint32_t owner : cell.owners) {
      for (PieceId p = slices[owner].first; p < slices[owner].last; ++p) {
        cells.held.push_back({number(layout.holder(p)), p});
      }
    }
    std::sort(cells.held.begin() + cells.first.back(), cells.held.end());
    cells.first.push_back(static_cast<uint32_t>(cells.held.size()));
  }
  return cells;
}

Result<TensorId> find_in_source(const Collection& source, const Tensor& wanted) {
  const auto id = source.find(wanted.name);
  if (!id) return not_found("{}: the source has no such tensor", wanted.name);
  const Tensor& found = source.tensor(*id);
  if (found.shape != wanted.shape || found.dtype != wanted.dtype) {
    return invalid("{}: the source has {} {}; expected {} {}", wanted.name,
                   name_of(found.dtype), to_string(found.shape), name_of(wanted.dtype),
                   to_string(wanted.shape));
  }
  for (const std::string& alias : wanted.aliases) {
    const auto tied = source.find(alias);
    if (tied && *tied != *id) {
      return invalid("{}: has the alias {}, which is another tensor in the source",
                     wanted.name, alias);
    }
  }
  return *id;
}

}  // namespace

Result<HolderTable> HolderTable::merge(const Layout& source, const Layout& target,
                                       const Topology& topology, bool all_new) {
  HolderTable table;
  std::unordered_map<std::string_view, HolderId> known;
  table.holders.assign(source.holders().begin(), source.holders().end());
  for (HolderId h = 0; h < source.holders().size() && !all_new; ++h) {
    known.emplace(source.holders()[h].name, h);
  }
  for (const Holder& holder : target.holders()) {
    const auto next = static_cast<HolderId>(table.holders.size());
    const auto [at, is_new] = known.emplace(holder.name, next);
    if (is_new) table.holders.push_back(holder);
    if (table.holders[at->second] != holder) {
      return invalid("holder {}: source and target disagree on its host or kind",
                     holder.name);
    }
    table.of_target.push_back(at->second);
  }
  for (const Holder& holder : table.holders) {
    if (holder.host >= topology.hosts.size()) {
      return invalid("holder {}: on host {}; expected a number below {}", holder.name,
                     holder.host, topology.hosts.size());
    }
  }
  return table;
}

Result<void> for_each_atom(const Collection& source, const Collection& target,
                           const HolderTable& table,
                           const std::function<void(const Atom&)>& visit) {
  for (TensorId t = 0; t < target.tensors().size(); ++t) {
    const Tensor& tensor = target.tensor(t);
    const TensorId s = HOLDFAST_TRY(find_in_source(source, tensor));
    const Cells have = HOLDFAST_TRY(
        cells_of(source.layout(), s, [](HolderId h) { return h; }).within(tensor.name));
    const Cells want = HOLDFAST_TRY(cells_of(target.layout(), t, [&](HolderId h) {
                                      return table.of_target[h];
                                    }).within(tensor.name));
    const BoxIndex index(have.boxes);
    for (size_t w = 0; w < want.boxes.size(); ++w) {
      int64_t found = 0;
      index.for_each_hit(want.boxes[w], [&](uint32_t h) {
        const Box common = *intersect(want.boxes[w], have.boxes[h]);
        found += common.elements();
        visit({t, s, common, common.elements() * bytes_of(tensor.dtype),
               have.holders(h), want.holders(w)});
      });
      if (found != want.boxes[w].elements()) {
        return not_found("{}: box {} has no holder left", tensor.name,
                         to_string(*first_gap(want.boxes[w], have.boxes)));
      }
    }
  }
  return {};
}

}  // namespace holdfast

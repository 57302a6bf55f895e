#include "holdfast/plan/writer_assignment.h"

#include <algorithm>

#include "holdfast/plan/balance.h"
#include "holdfast/state/box_index.h"

namespace holdfast {
namespace {

// A cell of a tensor, and the ranks that could write it.
struct Portion {
  TensorId tensor;
  Box box;
  Balancer::ClassId writers;
  HolderId first;  // the first of the writers
};

std::vector<Holder> files_of(const Layout& ranks, const WriterOptions& options) {
  std::vector<Holder> files;
  for (const Holder& rank : ranks.holders()) {
    files.push_back({.name = rank.name + ".file",
                     .kind = HolderKind::kFile,
                     .host = options.shared_storage.value_or(rank.host)});
  }
  return files;
}

// Adds the tensor's cells, each with all ranks that could write it. A tensor without
// elements is one empty cell, so that a file holds at least its name.
Result<void> add_portions(const Layout& layout, TensorId tensor, Balancer& balancer,
                          std::vector<Portion>& portions) {
  const auto slices = layout.slices(tensor);
  std::vector<Cell> cells = HOLDFAST_TRY(refine(layout.boxes(tensor)));
  if (cells.empty() && !slices.empty()) cells.push_back({slices.front().box, {0}});
  for (const Cell& cell : cells) {
    std::vector<uint32_t> writers;
    for (const uint32_t owner : cell.owners) {
      for (PieceId p = slices[owner].first; p < slices[owner].last; ++p) {
        writers.push_back(layout.holder(p));
      }
    }
    std::sort(writers.begin(), writers.end());
    portions.push_back({tensor, cell.box, balancer.class_of(writers), writers.front()});
  }
  return {};
}

}  // namespace

Result<Collection> assign_writers(const Collection& ranks, const Topology& topology,
                                  const WriterOptions& options) {
  HOLDFAST_TRY(ranks.check_covered());
  const Layout& layout = ranks.layout();
  std::vector<int64_t> bandwidth;
  for (const Holder& rank : layout.holders()) {
    bandwidth.push_back(topology.bandwidth(rank));
  }
  Balancer balancer(std::move(bandwidth));
  std::vector<Portion> portions;
  for (TensorId t = 0; t < ranks.tensors().size(); ++t) {
    HOLDFAST_TRY(
        add_portions(layout, t, balancer, portions).within(ranks.tensor(t).name));
  }
  const auto element_bytes = [&](const Portion& portion) {
    return bytes_of(ranks.tensor(portion.tensor).dtype);
  };
  for (const Portion& portion : portions) {
    balancer.demand(portion.writers, portion.box.elements() * element_bytes(portion));
  }
  balancer.solve();

  LayoutBuilder builder(ranks.tensors(), files_of(layout, options));
  std::vector<int64_t> end(layout.holders().size());  // the end of each file so far
  std::vector<Balancer::Part> parts;
  for (const Portion& portion : portions) {
    parts.clear();
    balancer.draw(portion.writers, portion.box, element_bytes(portion), parts);
    if (portion.box.empty()) parts.push_back({portion.first, portion.box});
    for (const auto& [writer, box] : parts) {
      builder.add(portion.tensor, box, writer, end[writer]);
      end[writer] += box.elements() * element_bytes(portion);
    }
  }
  return Collection::create({ranks.tensors().begin(), ranks.tensors().end()},
                            HOLDFAST_TRY(std::move(builder).build()));
}

}  // namespace holdfast

// For tests: random tensors and layouts, and memories of holders with real bytes.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "holdfast/state/collection.h"
#include "holdfast/state/strided.h"

namespace holdfast::tests {

using Memory = std::vector<std::byte>;
using Memories = std::vector<Memory>;  // one for each holder

// A small random generator. RapidCheck chooses the seed, so that a failing case can be
// repeated.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(n));
  }
  bool one_in(int64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

inline std::vector<Tensor> random_tensors(Dice& dice) {
  constexpr Dtype kDtypes[] = {Dtype::kU8, Dtype::kBf16, Dtype::kF32, Dtype::kC128};
  std::vector<Tensor> tensors;
  const int64_t count = 1 + dice.below(3);
  for (int64_t t = 0; t < count; ++t) {
    std::vector<int64_t> sizes(static_cast<size_t>(dice.below(4)));
    for (int64_t& size : sizes) size = dice.one_in(12) ? 0 : 1 + dice.below(7);
    Tensor tensor;
    tensor.name = fmt::format("t{}", t);
    tensor.shape = Shape::create(sizes).value();
    tensor.dtype = kDtypes[dice.below(4)];
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Cuts a box into a few boxes at random places.
inline std::vector<Box> random_parts(Dice& dice, const Box& whole) {
  std::vector<Box> parts{whole};
  for (int64_t cuts = dice.below(5); cuts > 0; --cuts) {
    const auto i = static_cast<size_t>(dice.below(static_cast<int64_t>(parts.size())));
    const Box part = parts[i];
    if (part.rank() == 0) continue;
    const int k = static_cast<int>(dice.below(part.rank()));
    if (part.size(k) < 2) continue;
    const int64_t at = part[k].lo + 1 + dice.below(part.size(k) - 1);
    parts[i] = part.with(k, {part[k].lo, at});
    parts.push_back(part.with(k, {at, part[k].hi}));
  }
  return parts;
}

// A random map: row-major or transposed, with or without gaps.
inline Map random_map(Dice& dice, const Box& box, int64_t element, int64_t offset,
                      int64_t& used) {
  std::vector<int> order(static_cast<size_t>(box.rank()));
  std::iota(order.begin(), order.end(), 0);
  if (dice.one_in(3)) std::reverse(order.begin(), order.end());
  Map map{.offset = offset};
  int64_t stride = element;
  for (auto k = order.rbegin(); k != order.rend(); ++k) {
    map.strides[static_cast<size_t>(*k)] = stride;
    stride *= std::max<int64_t>(box.size(*k), 1);
    if (dice.one_in(6)) stride += element;
  }
  used = stride;
  return map;
}

// Places boxes one after the other in each holder's bytes.
class RandomLayout {
 public:
  RandomLayout(Dice& dice, const std::vector<Tensor>& tensors,
               std::vector<Holder> holders)
      : dice_(dice),
        tensors_(tensors),
        used_(holders.size()),
        builder_(tensors_, std::move(holders)) {}

  void put(TensorId t, const Box& box, HolderId h) {
    int64_t bytes = 0;
    const Map map =
        random_map(dice_, box, bytes_of(tensors_[t].dtype), used_[h], bytes);
    builder_.add(t, box, h, map);
    used_[h] += bytes + dice_.below(3) * 16;
  }

  // The layout of what was put.
  Collection collection() && {
    return Collection::create(tensors_, std::move(builder_).build().value()).value();
  }

  // A layout in which every element has a holder, and some have several. Each holder's
  // boxes are cut independently, so boxes of different holders overlap in any way.
  Collection complete() && {
    const auto holders = static_cast<int64_t>(used_.size());
    for (TensorId t = 0; t < tensors_.size(); ++t) {
      const Box whole = Box::whole(tensors_[t].shape);
      // First, flat shards over all holders, or a random partition over random holders.
      const std::vector<Box> parts = random_parts(dice_, whole);
      std::vector<std::vector<Box>> of(used_.size());
      if (dice_.one_in(3)) {
        flat_shards(whole, of);
      } else {
        for (const Box& part : parts) {
          of[static_cast<size_t>(dice_.below(holders))].push_back(part);
        }
      }
      // Then some of the holders that have nothing yet get a replica or random boxes.
      for (size_t h = 0; h < of.size(); ++h) {
        if (!of[h].empty() || dice_.one_in(2)) continue;
        if (dice_.one_in(3)) {
          of[h] = parts;  // a whole replica, cut in the same way
        } else {
          for (const Box& part : random_parts(dice_, whole)) {
            if (dice_.one_in(2)) of[h].push_back(part);
          }
        }
      }
      for (HolderId h = 0; h < of.size(); ++h) {
        for (const Box& box : of[h]) put(t, box, h);
      }
    }
    return Collection::create(tensors_, std::move(builder_).build().value()).value();
  }

 private:
  void flat_shards(const Box& whole, std::vector<std::vector<Box>>& of) {
    const int64_t n = whole.elements(), d = static_cast<int64_t>(of.size());
    for (int64_t h = 0; h < d; ++h) {
      of[static_cast<size_t>(h)] = flat_range(whole, n * h / d, n * (h + 1) / d);
    }
    if (n == 0) of[0].push_back(whole);
  }

  Dice& dice_;
  const std::vector<Tensor>& tensors_;
  std::vector<int64_t> used_;
  LayoutBuilder builder_;
};

inline std::vector<Holder> random_holders(Dice& dice, const Topology& topology) {
  std::vector<Holder> holders;
  const int64_t count = 1 + dice.below(6);
  for (int64_t h = 0; h < count; ++h) {
    const auto host =
        static_cast<HostId>(dice.below(static_cast<int64_t>(topology.hosts.size())));
    const bool file = topology.hosts[host].shared_storage || dice.one_in(5);
    holders.push_back(
        {.name = fmt::format("{}-{}-{}", file ? "file" : "device", host, h),
         .kind = file ? HolderKind::kFile : HolderKind::kMemory,
         .host = host});
  }
  return holders;
}

inline Topology random_topology(Dice& dice) {
  Topology topology = Topology::uniform(static_cast<uint32_t>(1 + dice.below(4)));
  for (Host& host : topology.hosts) {
    host.island = static_cast<uint32_t>(dice.below(2));
    host.shared_storage = dice.one_in(6);
  }
  return topology;
}

// Random bytes of every tensor, in row-major order.
inline std::vector<Memory> random_values(Dice& dice, std::span<const Tensor> tensors) {
  std::vector<Memory> values;
  for (const Tensor& tensor : tensors) {
    Memory bytes(static_cast<size_t>(tensor.bytes()));
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = dice.next();
      std::memcpy(bytes.data() + at, &word, std::min(bytes.size() - at, sizeof word));
    }
    values.push_back(std::move(bytes));
  }
  return values;
}

// Calls visit(canonical byte offset, holder's byte offset, bytes) for each element of a
// box, or for each row of elements that the holder has without gaps. It shares no
// arithmetic with the library.
template <typename Visit>
void for_each_run(const Tensor& tensor, const Box& box, const Map& map, Visit&& visit) {
  if (box.empty()) return;
  const int64_t element = bytes_of(tensor.dtype);
  const int last = box.rank() - 1;
  const bool by_rows = last >= 0 && map.strides[static_cast<size_t>(last)] == element;
  const int64_t together = by_rows ? box.size(last) : 1;
  std::vector<int64_t> x;
  for (int k = 0; k < box.rank(); ++k) x.push_back(box[k].lo);
  for (int64_t n = box.elements() / together; n > 0; --n) {
    int64_t canonical = 0, local = map.offset;
    for (int k = 0; k < box.rank(); ++k) {
      const auto i = static_cast<size_t>(k);
      canonical = canonical * tensor.shape[k] + x[i];
      local += map.strides[i] * (x[i] - box[k].lo);
    }
    visit(canonical * element, local, together * element);
    for (int k = by_rows ? last - 1 : last; k >= 0; --k) {
      const auto i = static_cast<size_t>(k);
      if (++x[i] < box[k].hi) break;
      x[i] = box[k].lo;
    }
  }
}

// The same, one element at a time: visit(canonical byte offset, holder's byte offset).
template <typename Visit>
void for_each_element(const Tensor& tensor, const Box& box, const Map& map,
                      Visit&& visit) {
  for_each_run(tensor, box, map, [&](int64_t canonical, int64_t local, int64_t bytes) {
    for (int64_t done = 0; done < bytes; done += bytes_of(tensor.dtype)) {
      visit(canonical + done, local + done);
    }
  });
}

// Calls visit(tensor, holder, box, map) for every piece.
template <typename Visit>
void for_each_piece(const Collection& collection, Visit&& visit) {
  const Layout& layout = collection.layout();
  for (TensorId t = 0; t < collection.tensors().size(); ++t) {
    for (const Slice& slice : layout.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        visit(t, layout.holder(p), slice.box,
              layout.map(p, bytes_of(collection.tensor(t).dtype)));
      }
    }
  }
}

// Memories large enough for every piece.
inline Memories empty_memories(const Collection& collection) {
  std::vector<int64_t> sizes(collection.layout().holders().size());
  for_each_piece(
      collection, [&](TensorId t, HolderId h, const Box& box, const Map& map) {
        const int64_t element = bytes_of(collection.tensor(t).dtype);
        sizes[h] = std::max(sizes[h], range_of(map, box.shape(), element).last);
      });
  Memories memories;
  for (const int64_t size : sizes) memories.emplace_back(static_cast<size_t>(size));
  return memories;
}

inline Memories fill(const Collection& collection, const std::vector<Memory>& values) {
  Memories memories = empty_memories(collection);
  for_each_piece(
      collection, [&](TensorId t, HolderId h, const Box& box, const Map& map) {
        const Tensor& tensor = collection.tensor(t);
        for_each_run(tensor, box, map, [&](int64_t from, int64_t to, int64_t bytes) {
          std::copy_n(values[t].data() + from, bytes, memories[h].data() + to);
        });
      });
  return memories;
}

// True if every piece has exactly the canonical bytes.
inline bool holds(const Collection& collection, const Memories& memories,
                  const std::vector<Memory>& values) {
  bool same = true;
  for_each_piece(
      collection, [&](TensorId t, HolderId h, const Box& box, const Map& map) {
        const Tensor& tensor = collection.tensor(t);
        for_each_run(tensor, box, map, [&](int64_t at, int64_t local, int64_t bytes) {
          same &= std::memcmp(values[t].data() + at, memories[h].data() + local,
                              static_cast<size_t>(bytes)) == 0;
        });
      });
  return same;
}

}  // namespace holdfast::tests

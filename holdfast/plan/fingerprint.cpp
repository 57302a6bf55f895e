#include "holdfast/plan/fingerprint.h"

#include <array>
#include <span>
#include <string_view>

namespace holdfast {
namespace {

class Digester {
 public:
  void add(std::span<const uint64_t> words) {
    Bytes bytes(words.size() * sizeof(uint64_t));
    for (size_t i = 0; i < words.size(); ++i) {
      store_little_endian(words[i], ByteSpan(bytes).subspan(i * sizeof(uint64_t)));
    }
    stream_.append(bytes);
  }
  void add(const Holder& holder) {
    add(std::array<uint64_t, 3>{static_cast<uint64_t>(holder.kind), holder.host,
                                holder.name.size()});
    stream_.append(bytes_of(holder.name));
  }
  void add(const Box& box) {
    for (const Extent& extent : box.extents()) {
      add(std::array{static_cast<uint64_t>(extent.lo),
                     static_cast<uint64_t>(extent.hi)});
    }
  }
  void add(const Tensor& tensor) {
    add(std::array<uint64_t, 3>{tensor.name.size(),
                                static_cast<uint64_t>(tensor.dtype),
                                static_cast<uint64_t>(tensor.shape.rank())});
    stream_.append(bytes_of(tensor.name));
    add(Box::whole(tensor.shape));
  }
  Digest128 digest() const { return stream_.digest(); }

 private:
  Xxh3Stream stream_;
};

}  // namespace

Digest128 fingerprint(const Plan& plan) {
  Digester digester;
  digester.add(std::array<uint64_t, 2>{plan.holders.size(), plan.moves.size()});
  for (const Holder& holder : plan.holders) digester.add(holder);
  for (const Move& move : plan.moves) {
    const Box& box = plan.boxes[move.box];
    digester.add(std::array<uint64_t, 7>{move.tensor, move.from, move.to,
                                         move.from_holder, move.to_holder, move.after,
                                         static_cast<uint64_t>(box.rank())});
    digester.add(box);
  }
  return digester.digest();
}

Digest128 fingerprint(const Collection& collection) {
  Digester digester;
  const Layout& layout = collection.layout();
  digester.add(
      std::array<uint64_t, 2>{layout.holders().size(), collection.tensors().size()});
  for (const Holder& holder : layout.holders()) digester.add(holder);
  for (TensorId t = 0; t < collection.tensors().size(); ++t) {
    digester.add(collection.tensor(t));
    digester.add(std::array<uint64_t, 1>{layout.slices(t).size()});
    for (const Slice& slice : layout.slices(t)) {
      digester.add(slice.box);
      digester.add(std::array<uint64_t, 1>{slice.last - slice.first});
      for (PieceId p = slice.first; p < slice.last; ++p) {
        digester.add(std::array<uint64_t, 1>{layout.holder(p)});
      }
    }
  }
  return digester.digest();
}

}  // namespace holdfast

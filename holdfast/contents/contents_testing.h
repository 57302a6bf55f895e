// For tests: contents in memory with random values, boxes of them, sources that count
// reads, and a comparison of contents by name.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/testing.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/contents/contents.h"
#include "holdfast/state/layout_testing.h"

namespace holdfast::tests {

// Contents whose only file holds the canonical bytes of one tensor after the other.
inline Contents contents_with(std::vector<Tensor> tensors,
                              const std::vector<Memory>& values) {
  Bytes bytes;
  LayoutBuilder builder(tensors, {{.name = "memory", .kind = HolderKind::kFile}});
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), 0, std::ssize(bytes));
    bytes.insert(bytes.end(), values[t].begin(), values[t].end());
  }
  Layout layout = std::move(builder).build().value();
  return {.collection = Collection::create(std::move(tensors), layout).value(),
          .sources = {std::make_shared<MemorySource>("memory", std::move(bytes))},
          .objects = {},
          .metadata = {}};
}

inline Contents random_contents(std::vector<Tensor> tensors, uint64_t seed = 1) {
  Dice dice(seed);
  const auto values = random_values(dice, tensors);
  return contents_with(std::move(tensors), values);
}

inline Bytes canonical_bytes(const Contents& contents, TensorId tensor) {
  Bytes bytes(static_cast<size_t>(contents.collection.tensor(tensor).bytes()));
  const auto read = read_canonical(contents, tensor, 0, bytes);
  EXPECT_OK(read);
  return bytes;
}

// Expects the same names, dtypes, shapes, aliases and values, in any order of the
// tensors.
inline void expect_same_tensors(const Contents& seen, const Contents& want) {
  ASSERT_EQ(seen.collection.tensors().size(), want.collection.tensors().size());
  for (TensorId t = 0; t < want.collection.tensors().size(); ++t) {
    const Tensor& tensor = want.collection.tensor(t);
    const auto found = seen.collection.find(tensor.name);
    ASSERT_TRUE(found) << tensor.name;
    const Tensor& other = seen.collection.tensor(*found);
    EXPECT_EQ(other.name, tensor.name);
    EXPECT_EQ(name_of(other.dtype), name_of(tensor.dtype)) << tensor.name;
    ASSERT_EQ(to_string(other.shape), to_string(tensor.shape)) << tensor.name;
    EXPECT_EQ(other.aliases, tensor.aliases) << tensor.name;
    EXPECT_TRUE(canonical_bytes(seen, *found) == canonical_bytes(want, t))
        << tensor.name;
  }
}

// A box of any size, also an empty one.
inline Box random_box(Dice& dice, const Shape& shape) {
  Box box = Box::whole(shape);
  for (int k = 0; k < shape.rank(); ++k) {
    const int64_t lo = dice.below(shape[k] + 1);
    box = box.with(k, {lo, lo + dice.below(shape[k] - lo + 1)});
  }
  return box;
}

// Passes reads on and counts them.
class CountingSource : public Source {
 public:
  explicit CountingSource(std::shared_ptr<const Source> inner)
      : inner_(std::move(inner)) {}

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }

  struct Counts {
    int64_t reads = 0;
    int64_t bytes = 0;
    // The size of the largest read.
    int64_t most = 0;
  };
  mutable Counts counts;

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    counts.reads += 1;
    counts.bytes += std::ssize(into);
    counts.most = std::max<int64_t>(counts.most, std::ssize(into));
    return inner_->read(offset, into);
  }

 private:
  std::shared_ptr<const Source> inner_;
};

}  // namespace holdfast::tests

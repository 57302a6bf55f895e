// Whoever reads a part of a tensor that lies in chunks pays for the chunks that have a
// part of it, and for no others.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "holdfast/base/testing.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/hdf5/tree_internal.h"

namespace holdfast::chunk_reads_test {
namespace {

const std::filesystem::path kFixtures = HOLDFAST_HDF5_FIXTURES;

// What reading chunks costs.
struct Cost {
  int64_t reads = 0;
  int64_t bytes = 0;
};

// The cost of the stored chunks that have an element of the box, each read once.
Cost least_cost(const hdf5::Dataset& dataset, const Tensor& tensor, const Box& box) {
  std::set<int64_t> numbers;
  const int64_t element = dataset.element_bytes();
  tests::for_each_element(tensor, box, Map{}, [&](int64_t canonical, int64_t) {
    numbers.insert(hdf5::chunk_of(dataset, canonical / element).number);
  });
  Cost cost;
  for (const int64_t number : numbers) {
    const auto found = dataset.chunks.find(number);
    if (found == dataset.chunks.end()) continue;  // it was never written
    cost.reads += 1;
    cost.bytes += found->second.bytes;
  }
  return cost;
}

class ChunkReadsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK(disk_.write_file(
        "file", make_posix_env()->read_file(kFixtures / GetParam()).value()));
  }

  // Opens the file anew, so that no chunk is remembered.
  hdf5::OpenedFile open() {
    return hdf5::open_file(FileSource::open(env_, "file").value()).value();
  }

  // Reads a box of a newly opened file, and expects the right bytes at the least cost.
  // The box lies in memory in row-major order, or with its first dimension innermost.
  void expect_box(const std::string& name, const Box& box, bool reversed) {
    const hdf5::OpenedFile opened = open();
    const Contents& contents = opened.contents;
    const TensorId t = contents.collection.find(name).value();
    const Tensor& tensor = contents.collection.tensor(t);
    const int64_t element = bytes_of(tensor.dtype);
    Map into = Map::dense(box, element);
    if (reversed) into.strides = reversed_strides(box, element);
    const Cost before{env_.calls(Op::kRead), env_.bytes(Op::kRead)};
    Bytes memory(static_cast<size_t>(box.elements() * element));
    ASSERT_OK(read_box(contents, t, box, into, memory));
    const Cost seen{env_.calls(Op::kRead) - before.reads,
                    env_.bytes(Op::kRead) - before.bytes};
    const Cost least = least_cost(*opened.datasets[t], tensor, box);
    EXPECT_EQ(seen.reads, least.reads) << name << " " << to_string(box);
    EXPECT_EQ(seen.bytes, least.bytes) << name << " " << to_string(box);
    Bytes want(memory.size());
    const Bytes whole = tests::canonical_bytes(contents, t);
    tests::for_each_element(
        tensor, box, into, [&](int64_t canonical, int64_t local) {
          std::copy_n(whole.begin() + canonical, element, want.begin() + local);
        });
    EXPECT_TRUE(memory == want) << name << " " << to_string(box);
  }

  static std::array<int64_t, kMaxRank> reversed_strides(const Box& box,
                                                        int64_t element) {
    std::array<int64_t, kMaxRank> strides{};
    for (int k = 0; k < box.rank(); ++k) {
      strides[static_cast<size_t>(k)] = element;
      element *= box[k].size();
    }
    return strides;
  }

  MemoryEnv disk_;
  FaultyEnv env_{disk_};
};

TEST_P(ChunkReadsTest, AnyBoxIsReadFromTheChunksThatHaveAPartOfIt) {
  tests::Dice dice(5);
  for (const char* name : {"group/packed", "group/chunks", "group/sum", "unwritten"}) {
    const hdf5::OpenedFile opened = open();
    const auto& collection = opened.contents.collection;
    const Shape shape = collection.tensor(collection.find(name).value()).shape;
    for (int i = 0; i < 60; ++i) {
      expect_box(name, tests::random_box(dice, shape), i % 2 == 0);
    }
    expect_box(name, Box::whole(shape), false);
  }
}

// A column of a matrix whose rows cross four chunks.
TEST_P(ChunkReadsTest, AColumnLeavesTheChunksBesideItAlone) {
  const hdf5::OpenedFile opened = open();
  const TensorId t = opened.contents.collection.find("group/packed").value();
  const Box column{{0, 20}, {5, 6}};
  const Tensor& tensor = opened.contents.collection.tensor(t);
  EXPECT_EQ(least_cost(*opened.datasets[t], tensor, Box::whole(tensor.shape)).reads, 16);
  EXPECT_EQ(least_cost(*opened.datasets[t], tensor, column).reads, 4);
  expect_box("group/packed", column, false);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ChunkReadsTest,
                         ::testing::Values("older.h5", "newer.h5"), [](const auto& of) {
                           return std::string(of.param).substr(0, 5);
                         });

}  // namespace
}  // namespace holdfast::chunk_reads_test

// Measures how long it takes to find the boxes that overlap a box. The time must grow
// no faster than about logarithmically with the number of boxes, because the planner
// does this once for each box of a layout.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "holdfast/state/box_index.h"

namespace holdfast {
namespace {

constexpr int64_t kRows = 64;

std::vector<Box> row_blocks(int64_t count) {
  std::vector<Box> boxes;
  for (int64_t i = 0; i < count; ++i) {
    boxes.push_back(Box{{i * kRows, (i + 1) * kRows}, {0, 4096}});
  }
  return boxes;
}

void find_neighbours(benchmark::State& state) {
  const std::vector<Box> boxes = row_blocks(state.range(0));
  const BoxIndex index(boxes);
  size_t next = 0;
  int64_t hits = 0;
  for (auto _ : state) {
    index.for_each_hit(boxes[next], [&](uint32_t) { ++hits; });
    next = (next + 97) % boxes.size();
  }
  benchmark::DoNotOptimize(hits);
  state.SetComplexityN(state.range(0));
}
BENCHMARK(find_neighbours)->RangeMultiplier(8)->Range(64, 32768)->Complexity();

}  // namespace
}  // namespace holdfast

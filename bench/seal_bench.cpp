// Measures how fast the seal is computed: by each kernel, from the CPU's cache and from
// memory, and for boxes of usual layouts, beside memcpy and CRC32C over the same bytes.
// The rates count the bytes that are sealed.
#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <isa-l/crc.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "holdfast/state/seal.h"
#include "holdfast/state/seal_kernel.h"

namespace holdfast {
namespace {

constexpr size_t kHot = 256 << 10;
constexpr size_t kMemory = 256 << 20;

std::span<const std::byte> source(size_t size) {
  static const std::vector<uint64_t> words = [] {
    std::vector<uint64_t> random(kMemory / 8);
    std::mt19937_64 engine(1);
    for (uint64_t& word : random) word = engine();
    return random;
  }();
  return std::as_bytes(std::span(words)).first(size);
}

void count_bytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

void kernel(benchmark::State& state, SealKernel sum, size_t size) {
  const auto bytes = source(size);
  for (auto _ : state) benchmark::DoNotOptimize(seal_bytes_by(sum, bytes, 0));
  count_bytes(state, static_cast<int64_t>(size));
}

void copy(benchmark::State& state, size_t size) {
  std::vector<std::byte> target(size);
  for (auto _ : state) {
    std::memcpy(target.data(), source(size).data(), size);
    benchmark::ClobberMemory();
  }
  count_bytes(state, static_cast<int64_t>(size));
}

void crc32c(benchmark::State& state, size_t size) {
  auto* bytes = const_cast<unsigned char*>(
      reinterpret_cast<const unsigned char*>(source(size).data()));
  for (auto _ : state) {
    benchmark::DoNotOptimize(crc32_iscsi(bytes, static_cast<int>(size), ~0u));
  }
  count_bytes(state, static_cast<int64_t>(size));
}

void seal_one(benchmark::State& state, const Shape& shape, Dtype dtype, const Box& box,
              const Map& map) {
  const auto holder = source(kMemory);
  for (auto _ : state) {
    benchmark::DoNotOptimize(seal_box(shape, dtype, box, map, holder));
  }
  count_bytes(state, box.elements() * bytes_of(dtype));
}

// One of eight equal column shards of a BF16 matrix, stored without gaps. The argument
// is the number of bytes in a row of the shard.
void columns(benchmark::State& state) {
  const int64_t width = state.range(0) / 2, rows = int64_t{kMemory} / state.range(0);
  const Box box{{0, rows}, {3 * width, 4 * width}};
  seal_one(state, {rows, 8 * width}, Dtype::kBf16, box, Map::dense(box, 2));
}

// A square F32 matrix that its holder stores column by column.
void transposed(benchmark::State& state) {
  const int64_t n = state.range(0);
  seal_one(state, {n, n}, Dtype::kF32, Box{{0, n}, {0, n}}, Map{.strides = {4, 4 * n}});
}

// BF16 elements with a gap of two bytes after each in the holder's memory.
void gapped(benchmark::State& state) {
  const int64_t n = int64_t{kMemory} / 4;
  seal_one(state, {n}, Dtype::kBf16, Box{{0, n}}, Map{.strides = {4}});
}

BENCHMARK(columns)->Arg(16)->Arg(64)->Arg(256)->Arg(1024)->Arg(4096);
BENCHMARK(transposed)->Arg(1000)->Arg(8000)->Arg(8192);
BENCHMARK(gapped);

void register_by_size(const std::string& place, size_t size) {
  for (const NamedSealKernel& each : seal_kernels()) {
    const std::string name = fmt::format("{}/{}", each.name, place);
    benchmark::RegisterBenchmark(name.c_str(), kernel, each.sum, size);
  }
  benchmark::RegisterBenchmark(("memcpy/" + place).c_str(), copy, size);
  benchmark::RegisterBenchmark(("crc32c/" + place).c_str(), crc32c, size);
}

// Compares the speed of seal_bytes from memory, the best of 9 runs, with the bar.
bool print_bar() {
  constexpr double kBar = 5;
  double best = 0;
  for (int run = 0; run < 9; ++run) {
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(seal_bytes(source(kMemory), 0));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kMemory) / took.count() / 1e9);
  }
  fmt::print("seal from memory, one core: {:.2f} GB/s, bar {}{}\n", best, kBar,
             best < kBar ? "  MISSED" : "");
  return best >= kBar;
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  holdfast::register_by_size("hot", holdfast::kHot);
  holdfast::register_by_size("memory", holdfast::kMemory);
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return holdfast::print_bar() ? 0 : 1;
}

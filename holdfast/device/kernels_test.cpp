// The text of the CUDA kernels, run on the CPU.
#include <random>

#include "holdfast/base/testing.h"
#include "holdfast/device/cuda_copier_internal.h"
#include "holdfast/device/cuda_driver.h"
#include "holdfast/device/cuda_sealer_internal.h"
#include "holdfast/device/ptx_testing.h"
#include "holdfast/state/seal.h"

namespace holdfast::kernels_test {
namespace {

constexpr size_t kSums = CudaSealRun::kSums;

// Random bytes whose address is a multiple of 16 plus `shift`.
class Memory {
 public:
  Memory(size_t size, size_t shift) : bytes_(size + 32) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    first_ = (16 - address % 16) % 16 + shift;
    size_ = size;
    std::mt19937_64 random(size + shift);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
  }
  ByteSpan span() { return ByteSpan(bytes_).subspan(first_, size_); }

 private:
  Bytes bytes_;
  size_t first_ = 0, size_ = 0;
};

// What the kernel sums up for one entry, which is the second of its table.
Seal seal_by_kernel(const SealTable::Entry& entry, unsigned blocks) {
  static PtxKernel kernel(make_sealer());
  struct {
    SealTable table{};
    uint64_t sums = 0;
  } parameters;
  alignas(16) std::array<uint64_t, 2 * kSums * 2> sums;
  sums.fill(0x5555);
  parameters.table.entries[1] = entry;
  parameters.sums = reinterpret_cast<uint64_t>(sums.data());
  kernel.run({.x = blocks, .y = 2, .threads = kSealThreads},
             std::as_bytes(std::span(&parameters, 1)));
  Seal seal{.bytes = entry.bytes * entry.rows};
  for (unsigned x = 0; x < blocks; ++x) {
    EXPECT_EQ(sums[2 * x], 0U);  // the first entry has no rows
    seal.lanes[0] += sums[2 * (kSums + x)];
    seal.lanes[1] += sums[2 * (kSums + x) + 1];
  }
  return seal;
}

SealTable::Entry entry_of(ByteView bytes, uint64_t offset) {
  return {.from = reinterpret_cast<uint64_t>(bytes.data()),
          .offset = offset,
          .bytes = bytes.size(),
          .rows = 1,
          .from_pitch = 0,
          .offset_pitch = 0};
}

TEST(SealerKernel, SumsUpAsTheHostDoesWhereverARunBeginsAndEnds) {
  struct Case {
    size_t size, shift;  // of the memory
    uint64_t offset;
  };
  constexpr uint64_t kFar = (uint64_t{5} << 33) + 16;
  for (const auto& [size, shift, offset] :
       {Case{0, 0, 0}, Case{1, 1, 3}, Case{3, 4, 4094}, Case{17, 12, kFar + 12},
        Case{4096, 0, 0}, Case{4095, 1, 1}, Case{5000, 4, 4084}, Case{20000, 0, kFar},
        Case{20000, 12, 4092}, Case{40961, 0, 4080}}) {
    Memory memory(size, shift);
    ASSERT_EQ(seal_by_kernel(entry_of(memory.span(), offset), 1),
              seal_bytes(memory.span(), offset))
        << size << " bytes at " << shift << ", offset " << offset;
  }
}

TEST(SealerKernel, SharesALongRunAmongItsBlocks) {
  Memory memory((size_t{200} << 10) + 20, 0);
  const uint64_t offset = uint64_t{7} << 20;
  EXPECT_EQ(seal_by_kernel(entry_of(memory.span(), offset), 2),
            seal_bytes(memory.span(), offset));
}

TEST(SealerKernel, SumsUpRowsThatAreApartInMemoryAndInTheTensor) {
  for (const size_t bytes : {6u, 64u, 5000u}) {
    constexpr size_t kRows = 5;
    Memory memory(kRows * (bytes + 24), 0);
    SealTable::Entry entry = entry_of(memory.span().first(bytes), 4000);
    entry.rows = kRows;
    entry.from_pitch = bytes + 24;
    entry.offset_pitch = 3 * bytes;
    Seal expected;
    for (size_t row = 0; row < kRows; ++row) {
      expected += seal_bytes(memory.span().subspan(row * (bytes + 24), bytes),
                             4000 + row * 3 * bytes);
    }
    EXPECT_EQ(seal_by_kernel(entry, 2), expected) << bytes;
  }
}

TEST(CopierKernel, CopiesEveryByteAndNoOther) {
  PtxKernel kernel(kCopier);
  for (const size_t size : {0u, 1u, 15u, 16u, 4097u, 70000u}) {
    Memory from(size, 0), to(size + 1, 0);
    const std::byte behind = to.span()[size];
    CopyTable table{};
    table.entries[1] = {.to = reinterpret_cast<uint64_t>(to.span().data()),
                        .from = reinterpret_cast<uint64_t>(from.span().data()),
                        .bytes = size};
    kernel.run({.x = 2, .y = 2, .threads = 256}, std::as_bytes(std::span(&table, 1)));
    EXPECT_TRUE(std::ranges::equal(from.span(), to.span().first(size))) << size;
    EXPECT_EQ(to.span()[size], behind);
  }
}

TEST(RowCopierKernel, CopiesEveryRowAndNothingBetween) {
  PtxKernel kernel(make_row_copier());
  for (const auto& [bytes, rows] : {std::pair<size_t, size_t>{16, 700}, {48, 33},
                                    {4096, 3}, {20000, 2}, {16, 1}, {160, 0}}) {
    const size_t from_pitch = bytes + 32, to_pitch = bytes + 16;
    Memory from(rows * from_pitch + 1, 0), to(rows * to_pitch + 1, 0);
    Bytes expected(to.span().begin(), to.span().end());
    for (size_t row = 0; row < rows; ++row) {
      std::copy_n(from.span().begin() + static_cast<std::ptrdiff_t>(row * from_pitch), bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(row * to_pitch));
    }
    RowCopyTable table{};
    for (RowCopyTable::Entry& entry : table.entries) entry.bytes = 16;
    table.entries[1] = {.to = reinterpret_cast<uint64_t>(to.span().data()),
                        .from = reinterpret_cast<uint64_t>(from.span().data()),
                        .bytes = bytes,
                        .rows = rows,
                        .to_pitch = to_pitch,
                        .from_pitch = from_pitch};
    kernel.run({.x = 2, .y = 2, .threads = 256}, std::as_bytes(std::span(&table, 1)));
    EXPECT_TRUE(std::ranges::equal(to.span(), expected)) << bytes << " " << rows;
  }
}

}  // namespace
}  // namespace holdfast::kernels_test

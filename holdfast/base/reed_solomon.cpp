#include "holdfast/base/reed_solomon.h"

#include <isa-l/erasure_code.h>

#include "holdfast/base/result.h"

namespace holdfast {
namespace {

constexpr size_t kTableBytes = 32;  // of ISA-L, for each number of the matrix

size_t as_size(int n) { return static_cast<size_t>(n); }

// ISA-L does not change its input, but does not say so.
unsigned char* bytes_in(ByteView bytes) {
  return const_cast<unsigned char*>(
      reinterpret_cast<const unsigned char*>(bytes.data()));
}

unsigned char* bytes_out(ByteSpan bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

}  // namespace

ReedSolomon::ReedSolomon(int data, int parity)
    : data_(data),
      parity_(parity),
      matrix_(as_size(data + parity) * as_size(data)),
      tables_(kTableBytes * as_size(data) * as_size(parity)) {
  HOLDFAST_CHECK(data >= 1 && parity >= 1 && data + parity <= kMostBlocks,
                 "a code of {} + {} blocks", data, parity);
  gf_gen_cauchy1_matrix(matrix_.data(), data + parity, data);
  ec_init_tables(data, parity, matrix_.data() + as_size(data) * as_size(data),
                 tables_.data());
}

void ReedSolomon::add(int number, ByteView block,
                      std::span<const ByteSpan> parity) const {
  HOLDFAST_CHECK(number >= 0 && number < data_, "block {} of {}", number, data_);
  HOLDFAST_CHECK(parity.size() == as_size(parity_), "{} parity blocks", parity.size());
  std::vector<unsigned char*> into;
  for (const ByteSpan& one : parity) {
    HOLDFAST_CHECK(one.size() == block.size(), "blocks of {} and {} bytes", one.size(),
                   block.size());
    into.push_back(bytes_out(one));
  }
  // The function reads the tables only.
  ec_encode_data_update(static_cast<int>(block.size()), data_, parity_, number,
                        const_cast<unsigned char*>(tables_.data()), bytes_in(block),
                        into.data());
}

std::vector<Bytes> ReedSolomon::solve(std::span<const int> lost,
                                      std::span<const int> rows,
                                      std::span<const ByteView> sums) const {
  const size_t count = lost.size();
  HOLDFAST_CHECK(count >= 1 && rows.size() == count && sums.size() == count,
                 "{} blocks lost, {} rows, {} sums", count, rows.size(), sums.size());
  std::vector<unsigned char> part(count * count), inverse(count * count);
  for (size_t r = 0; r < count; ++r) {
    for (size_t c = 0; c < count; ++c) {
      part[r * count + c] =
          matrix_[as_size(data_ + rows[r]) * as_size(data_) + as_size(lost[c])];
    }
  }
  const int singular =
      gf_invert_matrix(part.data(), inverse.data(), static_cast<int>(count));
  HOLDFAST_CHECK(singular == 0, "a part of Cauchy's matrix without an inverse");
  std::vector<unsigned char> tables(kTableBytes * count * count);
  const int n = static_cast<int>(count);
  ec_init_tables(n, n, inverse.data(), tables.data());
  std::vector<Bytes> found(count, Bytes(sums[0].size()));
  std::vector<unsigned char*> from, into;
  for (size_t i = 0; i < count; ++i) {
    from.push_back(bytes_in(sums[i]));
    into.push_back(bytes_out(found[i]));
  }
  ec_encode_data(static_cast<int>(sums[0].size()), n, n, tables.data(), from.data(),
                 into.data());
  return found;
}

}  // namespace holdfast

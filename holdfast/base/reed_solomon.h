// A Reed-Solomon code: parity blocks, from which lost data blocks can be computed.
//
// From k data blocks of one length come m parity blocks of the same length. If up to m of
// the k + m blocks are lost, and it is known which, the others give the lost ones back,
// bit for bit. The numbers are those of the field GF(2^8), and the matrix is Cauchy's, in
// which every square part has an inverse. The work is done by ISA-L.
//
// The parity is a sum over the data blocks. So blocks can be added in any order, a block
// of zeros need not be added, and adding a block a second time takes it out again.
//
// Safe from several threads at once.
#pragma once

#include <span>
#include <vector>

#include "holdfast/base/bytes.h"

namespace holdfast {

class ReedSolomon {
 public:
  static constexpr int kMostBlocks = 255;  // data and parity together

  // Aborts unless both are at least 1 and together at most kMostBlocks.
  ReedSolomon(int data, int parity);

  int data() const { return data_; }
  int parity() const { return parity_; }

  // Adds data block `number` to the parity blocks, which are zeros before the first call.
  // `parity` has all parity blocks. All blocks have the same length.
  void add(int number, ByteView block, std::span<const ByteSpan> parity) const;

  // Computes data blocks that are lost. `lost` are their numbers, each once. `sums` are
  // as many parity blocks as blocks are lost, after all data blocks that are not lost
  // were taken out of them with add(); `rows` are the numbers of these parity blocks.
  std::vector<Bytes> solve(std::span<const int> lost, std::span<const int> rows,
                           std::span<const ByteView> sums) const;

 private:
  const int data_;
  const int parity_;
  // The rows of the matrix, first those of the data blocks, and the form of the last
  // `parity` rows that ISA-L computes with.
  std::vector<unsigned char> matrix_;
  std::vector<unsigned char> tables_;
};

}  // namespace holdfast

// Parity of a file: a second file, from which lost parts of the first one are computed.
//
// The file is cut into blocks of 1 to 16 KiB, and k blocks form a group with m parity
// blocks (base/reed_solomon.h). Up to m lost blocks of each group are computed from the
// others. The blocks of a group lie far apart in the file, so that a damaged stretch of
// many blocks takes only a few from each group. The parity file also has the CRC of each
// block, which says what is lost: parity mends damage wherever it is.
//
//   header    64 bytes: "HFPARITY", version 1, k, m, block (u32 each), blocks in a region,
//             bytes of the file (u64 each), zeros, CRC32C of the bytes before (u32)
//   regions   stretches of the file of about equal size, at most 1 GiB. For each region:
//             the CRC32C of each of its blocks, that of each of its parity blocks, that
//             of these numbers (u32 each); then the parity blocks, m of each group
//
// Block b of a region with n blocks is in group b % g, where g = n / k, rounded up. All
// numbers are little-endian. The last block is continued with zeros.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "holdfast/base/reed_solomon.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// The least and greatest share of a file that its parity may have.
inline constexpr double kLeastParity = 0.005, kMostParity = 0.5;

struct ParityShape {
  int data = 0;        // k
  int parity = 0;      // m
  int64_t block = 0;   // in bytes
  int64_t region = 0;  // in blocks of the file
  int64_t file_bytes = 0;

  int64_t blocks() const;  // of the file
  int64_t regions() const;
  // Of a region: its blocks, its groups, the size of its part of the parity file, and
  // where that begins.
  int64_t blocks_of(int64_t region) const;
  int64_t groups_of(int64_t region) const;
  int64_t parity_bytes_of(int64_t region) const;
  int64_t offset_of(int64_t region) const;
  int64_t parity_bytes() const { return offset_of(regions()); }  // of the parity file
  friend bool operator==(const ParityShape&, const ParityShape&) = default;
};

// The shape with which a file has about this share of parity. It may be more, because
// groups have whole blocks: a little for large files, and up to about twice the share for
// files of a few MB; below that, one group is the least. Fails with kInvalid unless the
// share is from kLeastParity to kMostParity.
Result<ParityShape> parity_shape(double share, int64_t file_bytes);

// Computes parity of bytes that arrive in order. Needs memory for the parity of a region:
// with a share of 1 %, about 10 MiB.
class ParityEncoder {
 public:
  // The parity goes to `sink`, which must outlive the encoder.
  ParityEncoder(const ParityShape& shape, Sink& sink);

  Result<void> add(ByteView bytes);
  // Called after all bytes were added.
  Result<void> finish();
  // Of the parity file, after finish().
  uint32_t crc() const { return crc_; }

 private:
  Result<void> put(ByteView bytes);
  Result<void> add_block(ByteView block);
  Result<void> end_region();

  const ParityShape shape_;
  const ReedSolomon code_;
  Sink& sink_;
  uint32_t crc_ = 0;
  Bytes part_;                  // of a block that is not complete
  int64_t added_ = 0;           // in bytes
  int64_t region_ = 0;          // the one that is being computed
  std::vector<uint32_t> crcs_;  // of its blocks so far
  Bytes parity_;                // of its groups
};

// The parity of a whole file, in memory.
Result<Bytes> encode_parity(const Source& file, const ParityShape& shape);

// A parity file that was opened.
class ParityReader {
 public:
  // Fails with kCorrupt if the header is damaged or the file has another size.
  static Result<ParityReader> open(std::shared_ptr<const Source> parity);

  const ParityShape& shape() const { return shape_; }

  // The bytes [offset, offset + bytes) of the file as they were. `file` is the file as it
  // is; it may be too short. Fails with kCorrupt, naming the group, if more blocks are
  // lost than there are parity blocks for. The caller checks the bytes against a digest.
  Result<Bytes> recover(const Source& file, int64_t offset, int64_t bytes) const;

 private:
  struct Region;
  ParityReader(std::shared_ptr<const Source> parity, const ParityShape& shape)
      : parity_(std::move(parity)), shape_(shape), code_(shape.data, shape.parity) {}

  Result<Region> read_region(int64_t number) const;
  Result<std::optional<Bytes>> read_block(const Source& file, const Region& region,
                                          int64_t block) const;
  Result<void> solve_group(const Source& file, Region& region, int64_t group) const;

  std::shared_ptr<const Source> parity_;  // shared with whoever opened it
  ParityShape shape_;
  ReedSolomon code_;
};

}  // namespace holdfast

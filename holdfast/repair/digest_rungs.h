// Two rungs of the ladder of step_repair.h: they find the right bytes of damaged chunks of a
// shard by what the step itself knows of them, without a copy.
//
//   by seals   One damaged word of a piece is found by its seal (state/changed_word.h).
//   by a CRC   One flipped bit of a chunk is found by its CRC. Other damage can pass for
//              one flipped bit (bit_search.h), so a second digest must confirm it:
//              the seals of the pieces, or that of the chunk before it was compressed. A
//              chunk of less than 0.5 MB, in which that is rare, needs none.
#pragma once

#include <map>
#include <memory>

#include "holdfast/env/source_sink.h"
#include "holdfast/repair/step_parts.h"

namespace holdfast {

// A byte of a shard, as it is in the file, that should be another.
struct RightByte {
  int64_t offset = 0;  // in the file
  std::byte seen{};
  std::byte right{};
};

// What a rung has found out about a chunk.
struct FoundBytes {
  std::vector<RightByte> bytes{};
  // "h.3.weight [12, 7] bit 30: 7.25e+36 -> 0.0213, by its seal".
  std::string what{};
};

// Looks for the damage of some chunks of a shard.
class DigestRungs {
 public:
  // `bad` are the chunks that do not have their CRC. All arguments must outlive this.
  DigestRungs(const StepParts& step, const ShardFile& shard, const Source& file,
           std::span<const size_t> bad);

  // Fails with kCorrupt, saying why, if the seals do not tell what was there.
  Result<FoundBytes> by_seal(size_t chunk);
  // The same for the CRC of the chunk.
  Result<FoundBytes> by_crc(size_t chunk);

 private:
  struct FlippedBit {
    RightByte byte;
    int bit = 0;
  };
  Result<Seal> seal_now(const PieceInShard& piece);
  Result<FoundBytes> mend_word(const PieceInShard& piece);
  Result<FlippedBit> find_bit(size_t chunk);
  Result<void> confirm(size_t chunk, const FlippedBit& bit);
  Result<void> confirm_by_seal(const PieceInShard& piece);

  const StepParts& step_;
  const ShardFile& shard_;
  const Source& file_;
  const std::span<const size_t> bad_;
  // The seals of pieces as they are, by offset: computing one takes a read of the piece.
  std::map<int64_t, Seal> seals_;
};

}  // namespace holdfast

// Mends chunks of a shard by what the step itself knows of them: the seals of the tensors
// and the CRC of each chunk.
//
//   by seals   One damaged word of a piece is found by its seal (state/changed_word.h).
//   by a CRC   One flipped bit of a chunk is found by its CRC. Other damage can pass for
//              one flipped bit (corruption/repair.h), so a second digest must confirm it:
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

struct SealMend {
  std::vector<RightByte> bytes{};
  // "h.3.weight [12, 7] bit 30: 7.25e+36 -> 0.0213, by its seal".
  std::string what{};
};

// Looks for the damage of some chunks of a shard.
class SealRung {
 public:
  // `bad` are the chunks that do not have their CRC. All arguments must outlive this.
  SealRung(const StepParts& step, const ShardFile& shard, const Source& file,
           std::span<const size_t> bad);

  // Fails with kCorrupt, saying why, if the seals do not tell what was there.
  Result<SealMend> by_seal(size_t chunk);
  // The same for the CRC of the chunk.
  Result<SealMend> by_crc(size_t chunk);

 private:
  struct FlippedBit {
    RightByte byte;
    int bit = 0;
  };
  Result<Seal> seal_now(const PieceThere& piece);
  Result<SealMend> mend_word(const PieceThere& piece);
  Result<FlippedBit> find_bit(size_t chunk);
  Result<void> confirm(size_t chunk, const FlippedBit& bit);
  Result<void> confirm_by_seal(const PieceThere& piece);

  const StepParts& step_;
  const ShardFile& shard_;
  const Source& file_;
  const std::span<const size_t> bad_;
  // The seals of pieces as they are, by offset: computing one takes a read of the piece.
  std::map<int64_t, Seal> seals_;
};

}  // namespace holdfast

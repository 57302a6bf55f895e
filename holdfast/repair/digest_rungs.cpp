#include "holdfast/repair/digest_rungs.h"

#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/repair/bit_search.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/state/box_stream.h"
#include "holdfast/state/element.h"
#include "holdfast/state/changed_word.h"

namespace holdfast {
namespace {

constexpr int64_t kSealWindow = int64_t{4} << 20;

size_t as_size(int64_t n) { return static_cast<size_t>(n); }

void add_change(Seal& seal, const Seal& before, const Seal& after) {
  for (size_t j = 0; j < seal.lanes.size(); ++j) {
    seal.lanes[j] += after.lanes[j] - before.lanes[j];
  }
}

}  // namespace

DigestRungs::DigestRungs(const StepParts& step, const ShardFile& shard, const Source& file,
                   std::span<const size_t> bad)
    : step_(step), shard_(shard), file_(file), bad_(bad) {}

Result<Seal> DigestRungs::seal_now(const PieceInShard& piece) {
  const auto known = seals_.find(piece.piece->offset);
  if (known != seals_.end()) return known->second;
  Seal seal;
  Bytes window;
  for (int64_t at = 0; at < piece.bytes(); at += kSealWindow) {
    window.resize(as_size(std::min(kSealWindow, piece.bytes() - at)));
    HOLDFAST_TRY(file_.read(piece.piece->offset + at, window));
    seal += seal_stream(piece.tensor->shape, piece.tensor->dtype, piece.piece->box, at,
                        window);
  }
  seals_.emplace(piece.piece->offset, seal);
  return seal;
}

Result<FoundBytes> DigestRungs::by_seal(size_t number) {
  if (!shard_.packed.empty()) {
    return corrupt("the chunk is compressed, so a word of it is no word of a tensor");
  }
  const Chunk& chunk = shard_.chunks[number];
  FoundBytes all;
  for (const PieceInShard& piece :
       pieces_in(step_, shard_.name, chunk.offset, chunk.bytes)) {
    if (!piece.sealed()) return corrupt("{} has no seal", piece.tensor->name);
    if (HOLDFAST_TRY(seal_now(piece)) == piece.piece->seal) continue;
    FoundBytes one = HOLDFAST_TRY(mend_word(piece));
    all.bytes.insert(all.bytes.end(), one.bytes.begin(), one.bytes.end());
    all.what += (all.what.empty() ? "" : ", and ") + one.what;
  }
  if (all.bytes.empty()) {
    return corrupt("all tensors in the chunk are as they were sealed");
  }
  return all;
}

Result<FoundBytes> DigestRungs::mend_word(const PieceInShard& piece) {
  const Tensor& tensor = *piece.tensor;
  const int64_t begin = piece.piece->offset;
  const auto change = HOLDFAST_TRY(find_word_change(
      piece.piece->seal, HOLDFAST_TRY(seal_now(piece)), tensor, piece.piece->box,
      [&](int64_t at, ByteSpan into) { return file_.read(begin + at, into); }));
  if (!change) {
    return corrupt("more than one word of {} differs from what was sealed", tensor.name);
  }
  FoundBytes mend;
  for (const ChangedByte& byte : change->bytes) {
    mend.bytes.push_back({begin + byte.place, byte.seen, byte.sealed});
  }
  const ChangedElement& first = change->elements.front();
  mend.what = fmt::format("{} {} {}: {}, by its seal", tensor.name,
                          index_text(tensor.shape, first.element),
                          bits_in_words(difference(first.seen, first.sealed)),
                          change_text(tensor.dtype, first.seen, first.sealed));
  return mend;
}

// The one bit that explains the CRC of the stored bytes of a chunk.
Result<DigestRungs::FlippedBit> DigestRungs::find_bit(size_t number) {
  const ByteExtent place = place_of(shard_, number);
  const uint32_t crc =
      shard_.packed.empty() ? shard_.chunks[number].crc : shard_.packed[number].crc;
  const Bytes stored = HOLDFAST_TRY(file_.read_bytes(place.offset, place.bytes));
  const std::vector<uint64_t> flips =
      crc32c_find_flips(crc32c(stored) ^ crc, static_cast<uint64_t>(place.bytes));
  if (flips.size() != 1) {
    return corrupt("the chunk has more damage than one flipped bit");
  }
  const auto byte = static_cast<size_t>(flips[0] / 8);
  const int bit = static_cast<int>(flips[0] % 8);
  return FlippedBit{.byte = {place.offset + static_cast<int64_t>(byte), stored[byte],
                             stored[byte] ^ static_cast<std::byte>(1 << bit)},
                    .bit = bit};
}

Result<FoundBytes> DigestRungs::by_crc(size_t chunk) {
  const FlippedBit bit = HOLDFAST_TRY(find_bit(chunk));
  HOLDFAST_TRY(confirm(chunk, bit));
  return FoundBytes{.bytes = {bit.byte},
                  .what = fmt::format("byte {} bit {}: {} -> {}, by the crc of the chunk",
                                      bit.byte.offset, bit.bit, to_hex(bit.byte.seen),
                                      to_hex(bit.byte.right))};
}

Result<void> DigestRungs::confirm(size_t number, const FlippedBit& bit) {
  const ByteExtent place = place_of(shard_, number);
  if (!shard_.packed.empty()) {
    Bytes stored = HOLDFAST_TRY(file_.read_bytes(place.offset, place.bytes));
    stored[as_size(bit.byte.offset - place.offset)] = bit.byte.right;
    Bytes unpacked;
    const ByteView chunk = HOLDFAST_TRY(open_chunk(shard_, number, stored, unpacked));
    if (crc32c(chunk) == shard_.chunks[number].crc) return {};
    return corrupt("a flipped bit explains the crc of the compressed chunk only");
  }
  for (const PieceInShard& piece : pieces_in(step_, shard_.name, bit.byte.offset, 1)) {
    if (piece.sealed()) return confirm_by_seal(piece);
  }
  const double odds = odds_of_passing(place.bytes);
  if (odds <= kMostOdds) return {};
  return corrupt(
      "a flipped bit explains the crc, but other damage would do so once in {:.0f} "
      "times; expected a seal or a copy to confirm it",
      1 / odds);
}

// Checks that the piece is as it was sealed if the bits of all bad chunks in it are
// flipped back.
Result<void> DigestRungs::confirm_by_seal(const PieceInShard& piece) {
  Seal seal = HOLDFAST_TRY(seal_now(piece));
  const int64_t begin = piece.piece->offset;
  for (const size_t number : bad_) {
    const Chunk& chunk = shard_.chunks[number];
    if (chunk.offset + chunk.bytes <= begin || chunk.offset >= begin + piece.bytes()) {
      continue;
    }
    const RightByte byte = HOLDFAST_TRY(find_bit(number)).byte;
    if (byte.offset < begin || byte.offset >= begin + piece.bytes()) continue;
    const auto part = [&](const std::byte& value) {
      return seal_stream(piece.tensor->shape, piece.tensor->dtype, piece.piece->box,
                         byte.offset - begin, ByteView(&value, 1));
    };
    add_change(seal, part(byte.seen), part(byte.right));
  }
  if (seal == piece.piece->seal) return {};
  return corrupt(
      "a flipped bit explains the crc, but then {} does not have the seal that was saved",
      piece.tensor->name);
}

}  // namespace holdfast

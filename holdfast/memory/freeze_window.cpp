#include "holdfast/memory/freeze_window.h"

#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/memory/piece_writer.h"
#include "holdfast/state/changed_word.h"

namespace holdfast {
namespace {

constexpr uint64_t kWordBytes = 4;

// The index of an element in the tensor, given its place in the box.
std::vector<int64_t> index_in_tensor(const Box& box, int64_t place) {
  std::vector<int64_t> index = index_of(box.shape(), place);
  for (size_t d = 0; d < index.size(); ++d) index[d] += box.extents()[d].lo;
  return index;
}

// The word at this offset. Bytes behind the end count as 0, as in the seal.
uint32_t word_at(ByteView bytes, size_t offset) {
  std::array<std::byte, kWordBytes> word{};
  std::ranges::copy(
      bytes.subspan(offset, std::min<size_t>(kWordBytes, bytes.size() - offset)),
      word.begin());
  return load_little_endian<uint32_t>(word);
}

// Puts the word at this offset. Returns false if it has bytes behind the end.
bool put_word(uint32_t word, ByteSpan bytes, size_t offset) {
  for (size_t k = 0; k < kWordBytes; ++k) {
    const auto byte = static_cast<std::byte>(word >> (8 * k));
    if (offset + k < bytes.size()) {
      bytes[offset + k] = byte;
    } else if (byte != std::byte{0}) {
      return false;
    }
  }
  return true;
}

}  // namespace

FreezeWindow::FreezeWindow(LocalPieces pieces)
    : pieces_(std::move(pieces)), devices_(devices_of(pieces_)) {
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const int64_t bytes = pieces_[p].bytes();
    first_parts_.push_back(parts_.size());
    streams_.push_back(std::make_shared<const Tensor>(
        Tensor{.name = pieces_[p].tensor->name, .dtype = Dtype::kU8, .shape = {bytes}}));
    for (int64_t first = 0; first < bytes; first += kPart) {
      parts_.push_back(
          {.piece = p, .first = first, .size = std::min(kPart, bytes - first)});
    }
    bytes_ += bytes;
  }
  first_parts_.push_back(parts_.size());
}

int64_t FreezeWindow::bytes(size_t first, size_t last) const {
  int64_t bytes = 0;
  for (size_t part = first; part < last; ++part) bytes += parts_[part].size;
  return bytes;
}

std::pair<size_t, size_t> FreezeWindow::parts_of(size_t piece) const {
  return {first_parts_[piece], first_parts_[piece + 1]};
}

std::vector<size_t> FreezeWindow::cut(size_t windows) const {
  const int64_t window_bytes = divide_up(bytes_, static_cast<int64_t>(windows));
  std::vector<size_t> firsts;
  int64_t before = 0;  // bytes of the parts before this one
  for (size_t part = 0; part < parts_.size(); ++part) {
    while (window_bytes * std::ssize(firsts) <= before) firsts.push_back(part);
    before += parts_[part].size;
  }
  firsts.resize(windows + 1, parts_.size());
  return firsts;
}

Result<void> FreezeWindow::wait_for(CudaStream stream) const {
  HOLDFAST_TRY(follow_stream(devices_, stream));
  for (const Device* device : devices_) {
    HOLDFAST_TRY(HOLDFAST_TRY(device->mark()).wait());
  }
  return {};
}

Result<std::string> FreezeWindow::open(size_t first, size_t last) {
  first_ = first;
  sealed_ = HOLDFAST_TRY(seals(first, last));
  std::vector<uint64_t> lanes;
  for (const Seal& now : sealed_) {
    lanes.insert(lanes.end(), now.lanes.begin(), now.lanes.end());
  }
  return xxh3_128(std::as_bytes(std::span(lanes))).hex();
}

Result<std::vector<size_t>> FreezeWindow::close() {
  const std::vector<Seal> now = HOLDFAST_TRY(seals(first_, first_ + sealed_.size()));
  std::vector<size_t> changed;
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] != sealed_[i]) changed.push_back(first_ + i);
  }
  return changed;
}

Result<Seal> FreezeWindow::seal(size_t part) const {
  return HOLDFAST_TRY(seals(part, part + 1)).front();
}

// The seals of the parts [first, last) as they are now.
Result<std::vector<Seal>> FreezeWindow::seals(size_t first, size_t last) const {
  std::vector<Seal> all(last - first);
  std::vector<LocalPiece> plain;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < all.size(); ++i) {
    const Part& part = parts_[first + i];
    const LocalPiece& piece = pieces_[part.piece];
    const auto live = piece.window(part.first, part.size);
    if (live.has_value() && piece.device == nullptr) {
      all[i] = seal_bytes(*live, static_cast<uint64_t>(part.first));
      continue;
    }
    if (live.has_value()) {
      plain.push_back(plain_bytes_of(part, *live));
      numbers.push_back(i);
      continue;
    }
    buffer_.resize(static_cast<size_t>(part.size));
    HOLDFAST_TRY(read_piece(pieces_[part.piece], part.first, buffer_));
    all[i] = seal_bytes(buffer_, static_cast<uint64_t>(part.first));
  }
  const std::vector<Seal> made = HOLDFAST_TRY(seals_of(plain));
  for (size_t i = 0; i < made.size(); ++i) all[numbers[i]] = made[i];
  return all;
}

// The part as a box of a tensor of bytes, given where it is in memory.
LocalPiece FreezeWindow::plain_bytes_of(const Part& part, ByteView live) const {
  const LocalPiece& piece = pieces_[part.piece];
  const Box box{{part.first, part.first + part.size}};
  return LocalPiece{.tensor = streams_[part.piece],
                    .box = box,
                    .memory = piece.memory,
                    .map = Map::dense(box, 1, live.data() - piece.memory.data()),
                    .device = piece.device};
}

Result<std::vector<RestingChange>> FreezeWindow::find(size_t part,
                                                       const Seal& sealed) const {
  const Bytes now = HOLDFAST_TRY(read(part));
  const std::optional<Bytes> before = HOLDFAST_TRY(bytes_before(part, sealed, now));
  if (!before.has_value()) return std::vector<RestingChange>();
  return compare(part, *before, now);
}

Result<std::vector<RestingChange>> FreezeWindow::mend(size_t part,
                                                       const Seal& sealed) {
  const Bytes now = HOLDFAST_TRY(read(part));
  const std::optional<Bytes> before = HOLDFAST_TRY(bytes_before(part, sealed, now));
  if (!before.has_value()) return beyond_repair(part);
  std::vector<RestingChange> changed = HOLDFAST_TRY(write(part, *before));
  if (HOLDFAST_TRY(seal(part)) == sealed) return changed;
  HOLDFAST_TRY(write(part, now));
  return beyond_repair(part);
}

// What the part was when it had the seal `sealed`; nullopt if that is not one word away.
Result<std::optional<Bytes>> FreezeWindow::bytes_before(size_t part, const Seal& sealed,
                                                        ByteView now) const {
  const auto first = static_cast<uint64_t>(parts_[part].first);
  const Seal seen = seal_bytes(now, first);
  const auto changed =
      find_changed_word(sealed, seen, first / kWordBytes,
                        divide_up(first + now.size(), kWordBytes));
  if (!changed.has_value()) return std::optional<Bytes>();
  const size_t offset = changed->word * kWordBytes - first;
  const std::optional<uint32_t> word = word_before(*changed, word_at(now, offset));
  Bytes before(now.begin(), now.end());
  if (!word.has_value() || !put_word(*word, before, offset) ||
      seal_bytes(before, first) != sealed) {
    return std::optional<Bytes>();
  }
  return std::optional(std::move(before));
}

Result<Bytes> FreezeWindow::read(size_t part) const {
  Bytes bytes(static_cast<size_t>(parts_[part].size));
  HOLDFAST_TRY(read_piece(pieces_[parts_[part].piece], parts_[part].first, bytes));
  return bytes;
}

Result<std::vector<RestingChange>> FreezeWindow::write(size_t part, ByteView bytes) {
  const auto& [p, first, size] = parts_[part];
  const LocalPiece& piece = pieces_[p];
  if (std::ssize(bytes) != size) {
    return invalid("{}: {} bytes for a part of {}; expected as many",
                   piece.tensor->name, bytes.size(), size);
  }
  const Bytes now = HOLDFAST_TRY(read(part));
  PieceWriter writer({&piece, 1});
  HOLDFAST_TRY(
      writer.put(piece, piece.box, bytes_of(piece.tensor->dtype), first, bytes));
  HOLDFAST_TRY(writer.finish());
  return compare(part, bytes, now);
}

// The elements in which the two differ, up to kNamed of them.
std::vector<RestingChange> FreezeWindow::compare(size_t part, ByteView before,
                                                  ByteView after) const {
  const LocalPiece& piece = pieces_[parts_[part].piece];
  const Tensor& tensor = *piece.tensor;
  const auto size = static_cast<size_t>(bytes_of(tensor.dtype));
  std::vector<RestingChange> changed;
  for (size_t at = 0; at < after.size() && changed.size() < kNamed; at += size) {
    if (std::ranges::equal(before.subspan(at, size), after.subspan(at, size))) continue;
    const ElementBits was = element_bits(before.subspan(at, size));
    const ElementBits is = element_bits(after.subspan(at, size));
    const auto text = [&](int digits) {
      return std::pair(value_text(tensor.dtype, was, digits),
                       value_text(tensor.dtype, is, digits));
    };
    constexpr int kFew = 3;
    auto values = text(kFew);
    if (values.first == values.second) values = text(kAllDigits);
    const int64_t place = (parts_[part].first + static_cast<int64_t>(at)) /
                          static_cast<int64_t>(size);
    changed.push_back({.tensor = tensor.name,
                       .index = index_in_tensor(piece.box, place),
                       .bits = bits_in_words(difference(was, is)),
                       .before = values.first,
                       .after = values.second});
  }
  return changed;
}

Error FreezeWindow::beyond_repair(size_t part) const {
  const auto& [p, first, size] = parts_[part];
  return corrupt("{}: more than one word of the bytes {} to {} has changed; expected at "
                 "most one",
                 pieces_[p].tensor->name, first, first + size);
}

}  // namespace holdfast

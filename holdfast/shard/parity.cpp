#include "holdfast/shard/parity.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "holdfast/base/checked.h"
#include "holdfast/base/crc32c.h"

namespace holdfast {
namespace {

// Keeps what is appended in memory.
class BytesSink : public Sink {
 public:
  Result<void> append(ByteView more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return {};
  }
  int64_t size() const override { return std::ssize(bytes); }
  Bytes bytes;
};

constexpr std::string_view kMagic = "HFPARITY";
constexpr uint32_t kVersion = 1;
constexpr int64_t kHeaderBytes = 64, kCrcBytes = 4;
constexpr int64_t kLeastBlock = 1 << 10, kMostBlock = 16 << 10;
constexpr int64_t kMostRegion = int64_t{1} << 30;

size_t as_size(int64_t n) { return static_cast<size_t>(n); }

Bytes encode_header(const ParityShape& shape) {
  Bytes bytes(as_size(kHeaderBytes));
  const ByteSpan all(bytes);
  std::ranges::copy(bytes_of(kMagic), bytes.begin());
  store_little_endian(kVersion, all.subspan(8));
  store_little_endian(static_cast<uint32_t>(shape.data), all.subspan(12));
  store_little_endian(static_cast<uint32_t>(shape.parity), all.subspan(16));
  store_little_endian(static_cast<uint32_t>(shape.block), all.subspan(20));
  store_little_endian(static_cast<uint64_t>(shape.region), all.subspan(24));
  store_little_endian(static_cast<uint64_t>(shape.file_bytes), all.subspan(32));
  store_little_endian(crc32c(all.first(60)), all.subspan(60));
  return bytes;
}

// Whether the numbers of a header can be those of a file that this code has written.
bool makes_sense(const ParityShape& shape) {
  const bool fits = shape.data >= 1 && shape.parity >= 1 &&
                    shape.data <= ReedSolomon::kMostBlocks &&
                    shape.parity <= ReedSolomon::kMostBlocks - shape.data &&
                    shape.block >= kLeastBlock && shape.block <= kMostBlock &&
                    shape.region >= 1 && shape.region <= kMostRegion / kLeastBlock &&
                    shape.file_bytes >= 0 && shape.file_bytes <= int64_t{1} << 60;
  if (!fits) return false;
  // No region has more bytes than the first one.
  const auto all = checked_mul(shape.regions(), shape.parity_bytes_of(0));
  return all && checked_add(*all, kHeaderBytes);
}

Result<ParityShape> decode_header(ByteView bytes, const std::string& where) {
  if (text_of(bytes.first(kMagic.size())) != kMagic ||
      load_little_endian<uint32_t>(bytes.subspan(60)) != crc32c(bytes.first(60))) {
    return corrupt("{}: the header is damaged; expected that of a parity file", where);
  }
  const auto number = [&](size_t at) {
    return static_cast<int>(
        std::min(load_little_endian<uint32_t>(bytes.subspan(at)), uint32_t{1} << 30));
  };
  const auto large = [&](size_t at) {
    return static_cast<int64_t>(
        std::min(load_little_endian<uint64_t>(bytes.subspan(at)), uint64_t{1} << 62));
  };
  if (number(8) != static_cast<int>(kVersion)) {
    return unsupported("{}: version {}; expected {}", where, number(8), kVersion);
  }
  const ParityShape shape{.data = number(12),
                          .parity = number(16),
                          .block = number(20),
                          .region = large(24),
                          .file_bytes = large(32)};
  if (!makes_sense(shape)) return corrupt("{}: has an impossible shape", where);
  return shape;
}

// The parity blocks of a group.
std::vector<ByteSpan> blocks_of_group(const ParityShape& shape, ByteSpan parity,
                                      int64_t group) {
  std::vector<ByteSpan> blocks;
  for (int64_t j = 0; j < shape.parity; ++j) {
    blocks.push_back(parity.subspan(as_size((group * shape.parity + j) * shape.block),
                                    as_size(shape.block)));
  }
  return blocks;
}

}  // namespace

int64_t ParityShape::blocks() const { return divide_up(file_bytes, block); }

int64_t ParityShape::regions() const { return divide_up(blocks(), region); }

int64_t ParityShape::blocks_of(int64_t number) const {
  return std::min(region, blocks() - number * region);
}

int64_t ParityShape::groups_of(int64_t number) const {
  return divide_up(blocks_of(number), int64_t{data});
}

int64_t ParityShape::parity_bytes_of(int64_t number) const {
  const int64_t sums = groups_of(number) * parity;
  return (blocks_of(number) + sums + 1) * kCrcBytes + sums * block;
}

int64_t ParityShape::offset_of(int64_t number) const {
  // All regions before the last one have the same size.
  if (number == 0) return kHeaderBytes;
  const int64_t whole = number == regions() ? number - 1 : number;
  return kHeaderBytes + (whole > 0 ? whole * parity_bytes_of(0) : 0) +
         (number == regions() ? parity_bytes_of(number - 1) : 0);
}

Result<ParityShape> parity_shape(double share, int64_t file_bytes) {
  if (!(share >= kLeastParity && share <= kMostParity)) {
    return invalid("parity: a share of {}; expected {} to {}", share, kLeastParity,
                   kMostParity);
  }
  // The CRCs of the blocks are a part of the share.
  const double rest = share - static_cast<double>(kCrcBytes + 1) / kMostBlock;
  const auto most = static_cast<int>(ReedSolomon::kMostBlocks / (1 + rest));
  const int parity = std::max(1, static_cast<int>(most * rest));
  const int data = std::min(static_cast<int>(std::ceil(parity / rest)),
                            ReedSolomon::kMostBlocks - parity);
  const int64_t regions = std::max<int64_t>(1, divide_up(file_bytes, kMostRegion));
  std::optional<ParityShape> best;
  for (int64_t block = kMostBlock; block >= kLeastBlock; block /= 2) {
    ParityShape shape{
        .data = data, .parity = parity, .block = block, .file_bytes = file_bytes};
    shape.region = std::max<int64_t>(1, divide_up(shape.blocks(), regions));
    if (!best || shape.parity_bytes() < best->parity_bytes()) best = shape;
  }
  return *best;
}

ParityEncoder::ParityEncoder(const ParityShape& shape, Sink& sink)
    : shape_(shape), code_(shape.data, shape.parity), sink_(sink) {}

Result<void> ParityEncoder::put(ByteView bytes) {
  crc_ = crc32c_extend(crc_, bytes);
  return sink_.append(bytes);
}

Result<void> ParityEncoder::add(ByteView bytes) {
  if (added_ == 0 && !bytes.empty()) HOLDFAST_TRY(put(encode_header(shape_)));
  added_ += std::ssize(bytes);
  HOLDFAST_CHECK(added_ <= shape_.file_bytes, "{} bytes for the parity of {}", added_,
                 shape_.file_bytes);
  const size_t block = as_size(shape_.block);
  while (!bytes.empty()) {
    // A block that is complete in memory is not copied.
    if (part_.empty() && bytes.size() >= block) {
      HOLDFAST_TRY(add_block(bytes.first(block)));
      bytes = bytes.subspan(block);
      continue;
    }
    const size_t count = std::min(block - part_.size(), bytes.size());
    part_.insert(part_.end(), bytes.begin(),
                 bytes.begin() + static_cast<int64_t>(count));
    bytes = bytes.subspan(count);
    if (part_.size() < block) continue;
    HOLDFAST_TRY(add_block(part_));
    part_.clear();
  }
  return {};
}

Result<void> ParityEncoder::add_block(ByteView block) {
  const int64_t groups = shape_.groups_of(region_);
  if (crcs_.empty()) {
    parity_.assign(as_size(groups * shape_.parity * shape_.block), std::byte{0});
  }
  const int64_t number = std::ssize(crcs_);
  crcs_.push_back(crc32c(block));
  code_.add(static_cast<int>(number / groups), block,
            blocks_of_group(shape_, parity_, number % groups));
  if (std::ssize(crcs_) < shape_.blocks_of(region_)) return {};
  return end_region();
}

Result<void> ParityEncoder::end_region() {
  const int64_t sums = shape_.groups_of(region_) * shape_.parity;
  for (int64_t i = 0; i < sums; ++i) {
    crcs_.push_back(crc32c(ByteView(parity_).subspan(as_size(i * shape_.block),
                                                     as_size(shape_.block))));
  }
  Bytes table((crcs_.size() + 1) * as_size(kCrcBytes));
  for (size_t i = 0; i < crcs_.size(); ++i) {
    store_little_endian(crcs_[i], ByteSpan(table).subspan(4 * i));
  }
  const size_t end = 4 * crcs_.size();
  store_little_endian(crc32c(ByteView(table).first(end)), ByteSpan(table).subspan(end));
  HOLDFAST_TRY(put(table));
  HOLDFAST_TRY(put(parity_));
  crcs_.clear();
  ++region_;
  return {};
}

Result<void> ParityEncoder::finish() {
  HOLDFAST_CHECK(added_ == shape_.file_bytes, "{} bytes for the parity of {}", added_,
                 shape_.file_bytes);
  if (added_ == 0) return put(encode_header(shape_));
  if (part_.empty()) return {};
  part_.resize(as_size(shape_.block));
  HOLDFAST_TRY(add_block(part_));
  part_.clear();
  return {};
}

Result<Bytes> encode_parity(const Source& file, const ParityShape& shape) {
  constexpr int64_t kWindow = int64_t{4} << 20;
  BytesSink sink;
  ParityEncoder encoder(shape, sink);
  for (int64_t at = 0; at < shape.file_bytes; at += kWindow) {
    HOLDFAST_TRY(encoder.add(HOLDFAST_TRY(
        file.read_bytes(at, std::min(kWindow, shape.file_bytes - at)))));
  }
  HOLDFAST_TRY(encoder.finish());
  return std::move(sink.bytes);
}

// A region of the parity file: what is known of its blocks, and those that were computed.
struct ParityReader::Region {
  int64_t number = 0;
  int64_t first = 0;  // block of the file
  int64_t groups = 0;
  std::vector<uint32_t> crcs;         // of the blocks, then of the parity blocks
  int64_t sums = 0;                   // where the parity blocks begin
  std::map<int64_t, Bytes> solved{};  // by the number of the block in the region
};

Result<ParityReader> ParityReader::open(std::shared_ptr<const Source> parity) {
  if (parity->size() < kHeaderBytes) {
    return corrupt("{}: has {} bytes; expected at least {}", parity->name(),
                   parity->size(), kHeaderBytes);
  }
  const Bytes header = HOLDFAST_TRY(parity->read_bytes(0, kHeaderBytes));
  const ParityShape shape = HOLDFAST_TRY(decode_header(header, parity->name()));
  if (parity->size() != shape.parity_bytes()) {
    return corrupt("{}: has {} bytes; expected {}", parity->name(), parity->size(),
                   shape.parity_bytes());
  }
  return ParityReader(std::move(parity), shape);
}

Result<ParityReader::Region> ParityReader::read_region(int64_t number) const {
  Region region{.number = number,
                .first = number * shape_.region,
                .groups = shape_.groups_of(number),
                .crcs = {}};
  const int64_t count = shape_.blocks_of(number) + region.groups * shape_.parity;
  const int64_t at = shape_.offset_of(number);
  const Bytes table =
      HOLDFAST_TRY(parity_->read_bytes(at, (count + 1) * kCrcBytes));
  const ByteView numbers = ByteView(table).first(as_size(count * kCrcBytes));
  if (load_little_endian<uint32_t>(ByteView(table).subspan(numbers.size())) !=
      crc32c(numbers)) {
    return corrupt("{}: the digests of region {} are damaged", parity_->name(), number);
  }
  for (int64_t i = 0; i < count; ++i) {
    region.crcs.push_back(
        load_little_endian<uint32_t>(numbers.subspan(as_size(i * kCrcBytes))));
  }
  region.sums = at + (count + 1) * kCrcBytes;
  return region;
}

// A block of a region, continued with zeros; nullopt if it is not as it was.
Result<std::optional<Bytes>> ParityReader::read_block(const Source& file,
                                                      const Region& region,
                                                      int64_t block) const {
  const int64_t offset = (region.first + block) * shape_.block;
  const int64_t whole = std::min(shape_.block, shape_.file_bytes - offset);
  Bytes bytes(as_size(shape_.block));
  if (offset + whole > file.size()) return std::optional<Bytes>();
  const Result<void> read =
      file.read(offset, ByteSpan(bytes).first(as_size(whole)));
  if (!read.ok() && read.error().code() != ErrorCode::kCorrupt &&
      read.error().code() != ErrorCode::kIo) {
    return read.error();
  }
  if (!read.ok() || crc32c(bytes) != region.crcs[as_size(block)]) {
    return std::optional<Bytes>();
  }
  return std::optional(std::move(bytes));
}

// Computes the lost blocks of a group.
Result<void> ParityReader::solve_group(const Source& file, Region& region,
                                       int64_t group) const {
  const int64_t blocks = shape_.blocks_of(region.number);
  Bytes sums = HOLDFAST_TRY(
      parity_->read_bytes(region.sums + group * shape_.parity * shape_.block,
                          shape_.parity * shape_.block));
  const std::vector<ByteSpan> all = blocks_of_group(shape_, sums, 0);
  std::vector<int> lost, rows;
  for (int j = 0; j < shape_.parity; ++j) {
    const auto crc = as_size(blocks + group * shape_.parity + j);
    if (crc32c(all[as_size(j)]) == region.crcs[crc]) rows.push_back(j);
  }
  for (int64_t b = group; b < blocks; b += region.groups) {
    const auto number = static_cast<int>(b / region.groups);
    const std::optional<Bytes> block = HOLDFAST_TRY(read_block(file, region, b));
    if (block) {
      code_.add(number, *block, all);
    } else {
      lost.push_back(number);
    }
  }
  if (lost.size() > rows.size()) {
    return corrupt(
        "{}: {} blocks of {} bytes are lost in group {} of region {}, and {} parity "
        "blocks are left; expected as many",
        parity_->name(), lost.size(), shape_.block, group, region.number, rows.size());
  }
  if (lost.empty()) return {};
  rows.resize(lost.size());
  std::vector<ByteView> left;
  for (const int row : rows) left.emplace_back(all[as_size(row)]);
  std::vector<Bytes> found = code_.solve(lost, rows, left);
  for (size_t i = 0; i < lost.size(); ++i) {
    region.solved[lost[i] * region.groups + group] = std::move(found[i]);
  }
  return {};
}

Result<Bytes> ParityReader::recover(const Source& file, int64_t offset,
                                    int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > shape_.file_bytes - bytes) {
    return corrupt("{}: is the parity of {} bytes; expected those to {}",
                   parity_->name(), shape_.file_bytes, offset + bytes);
  }
  Bytes result;
  std::optional<Region> region;
  for (int64_t at = offset; at < offset + bytes;) {
    const int64_t number = at / shape_.block, inside = at % shape_.block;
    if (!region || region->number != number / shape_.region) {
      region = HOLDFAST_TRY(read_region(number / shape_.region));
    }
    const int64_t block = number - region->first;
    std::optional<Bytes> found = HOLDFAST_TRY(read_block(file, *region, block));
    if (!found) {
      if (!region->solved.contains(block)) {
        HOLDFAST_TRY(solve_group(file, *region, block % region->groups));
      }
      const auto solved = region->solved.find(block);
      if (solved == region->solved.end()) {
        return corrupt("{}: the bytes at {} are not the same each time they are read",
                       file.name(), number * shape_.block);
      }
      found = solved->second;
    }
    const int64_t count = std::min(shape_.block - inside, offset + bytes - at);
    result.insert(result.end(), found->begin() + inside,
                  found->begin() + inside + count);
    at += count;
  }
  return result;
}

}  // namespace holdfast

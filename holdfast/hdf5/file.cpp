#include <algorithm>

#include "holdfast/hdf5/file_internal.h"
#include "holdfast/hdf5/lookup3.h"

namespace holdfast::hdf5 {
namespace {

// No superblock is longer, whatever its version and sizes are.
constexpr int64_t kMostSuperblock = 256;
constexpr size_t kMostNameShown = 120;
// Objects that share a datatype read it more than once, but not this often.
constexpr uint64_t kFewStructures = uint64_t{64} << 20;
constexpr uint64_t kMostReads = 32;

}  // namespace

Result<int64_t> find_signature(const Source& source) {
  for (int64_t at = 0; at + kSignatureBytes <= source.size();
       at = at == 0 ? 512 : 2 * at) {
    const Bytes head = HOLDFAST_TRY(source.read_bytes(at, kSignatureBytes));
    if (text_of(head) == kSignature) return at;
    if (at > source.size() / 2) break;
  }
  return corrupt(
      "{}: has no superblock of HDF5; expected one at byte 0, 512, 1024, ...",
      source.name());
}

std::string printable(std::string_view name) {
  std::string text(name.substr(0, kMostNameShown));
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; },
      '?');
  return name.size() > kMostNameShown ? text + "..." : text;
}

Result<void> check_sum(ByteView block, std::string_view where, std::string_view what) {
  const auto seen = load_little_endian<uint32_t>(block.last(4));
  const uint32_t expected = lookup3(block.first(block.size() - 4));
  if (seen == expected) return {};
  return corrupt("{}: {} has the checksum {:08x}; expected {:08x}", where, what, seen,
                 expected);
}

File::File(std::shared_ptr<const Source> source)
    : source_(std::move(source)),
      readable_(std::make_shared<uint64_t>(
          kFewStructures + kMostReads * static_cast<uint64_t>(source_->size()))) {}

Result<File> File::open(std::shared_ptr<const Source> source) {
  File file(std::move(source));
  file.base_ = HOLDFAST_TRY(find_signature(*file.source_));
  HOLDFAST_TRY(file.read_superblock());
  return file;
}

Result<void> File::read_superblock() {
  const Bytes head = HOLDFAST_TRY(
      source_->read_bytes(base_, std::min(source_->size() - base_, kMostSuperblock)));
  Cursor cursor(head, sizes_);
  cursor.skip(kSignatureBytes);
  version_ = cursor.u8();
  if (version_ > 3) {
    return unsupported("{}: superblock has the version {}; expected 0 to 3", name(),
                       version_);
  }
  HOLDFAST_TRY(version_ < 2 ? read_old(cursor) : read_new(cursor, head));
  if (root_ == kUndefined) return corrupt("{}: superblock names no root group", name());
  return {};
}

// Versions 0 and 1.
Result<void> File::read_old(Cursor& cursor) {
  cursor.skip(4);
  const uint8_t offset = cursor.u8(), length = cursor.u8();
  HOLDFAST_TRY(set_sizes(offset, length));
  const ByteView rest = cursor.take(cursor.left());
  Cursor fields(rest, sizes_);
  fields.skip(version_ == 1 ? 13 : 9);
  const uint64_t base = fields.address();
  fields.skip(sizes_.offset);
  end_field_ = base_ + 15 + static_cast<int64_t>(fields.at());
  const uint64_t end = fields.address();
  fields.skip(2 * uint64_t{sizes_.offset});
  root_ = fields.address();
  fields.skip(24);
  superblock_bytes_ = 15 + static_cast<int64_t>(fields.at());
  HOLDFAST_TRY(fields.check(name(), "superblock"));
  return check_end(end_base_ = base, end);
}

// Versions 2 and 3.
Result<void> File::read_new(Cursor& cursor, ByteView head) {
  const uint8_t offset = cursor.u8(), length = cursor.u8();
  HOLDFAST_TRY(set_sizes(offset, length));
  const ByteView rest = cursor.take(cursor.left());
  Cursor fields(rest, sizes_);
  fields.skip(1);
  const uint64_t base = fields.address();
  fields.skip(sizes_.offset);
  end_field_ = base_ + 11 + static_cast<int64_t>(fields.at());
  const uint64_t end = fields.address();
  root_ = fields.address();
  fields.skip(4);
  HOLDFAST_TRY(fields.check(name(), "superblock"));
  superblock_bytes_ = 11 + static_cast<int64_t>(fields.at());
  HOLDFAST_TRY(check_sum(head.first(static_cast<size_t>(superblock_bytes_)), name(),
                         "superblock"));
  return check_end(end_base_ = base, end);
}

Result<void> File::set_sizes(uint8_t offset, uint8_t length) {
  const auto known = [](uint8_t size) { return size == 2 || size == 4 || size == 8; };
  if (!known(offset) || !known(length)) {
    return unsupported(
        "{}: superblock has addresses of {} bytes and lengths of {}; expected 2, 4 or "
        "8",
        name(), offset, length);
  }
  sizes_ = {offset, length};
  return {};
}

// The end counts from byte 0 of the file as it was written, when the superblock lay at
// `stored_base`.
Result<void> File::check_end(uint64_t stored_base, uint64_t end) const {
  const auto there = static_cast<uint64_t>(source_->size() - base_);
  if (end < stored_base || end - stored_base > there) {
    return corrupt("{}: superblock says that the file ends at byte {}, but it has {}",
                   name(), end, source_->size());
  }
  return {};
}

Result<int64_t> File::place_of(uint64_t address, uint64_t count, std::string_view where,
                               std::string_view what) const {
  const auto there = static_cast<uint64_t>(source_->size() - base_);
  if (address == kUndefined || address > there || count > there - address) {
    return corrupt(
        "{}: {} lies at {} and has {} bytes; expected it inside the file", where, what,
        address == kUndefined ? "no address" : std::to_string(address), count);
  }
  return base_ + static_cast<int64_t>(address);
}

Result<Bytes> File::read(uint64_t address, uint64_t count, std::string_view where,
                         std::string_view what) const {
  const int64_t at = HOLDFAST_TRY(place_of(address, count, where, what));
  if (count > *readable_) {
    return corrupt(
        "{}: {} at {} was read too often, like others before; expected structures that "
        "do not overlap",
        where, what, address);
  }
  *readable_ -= count;
  return source_->read_bytes(at, static_cast<int64_t>(count));
}

Result<Bytes> File::read_block(uint64_t address, uint64_t count,
                               std::string_view letters, std::string_view where,
                               std::string_view what) const {
  Bytes block = HOLDFAST_TRY(read(address, count, where, what));
  const std::string_view seen = text_of(block).substr(0, letters.size());
  if (seen != letters) {
    return corrupt("{}: {} at {} begins with \"{}\"; expected {}", where, what, address,
                   printable(seen), letters);
  }
  return block;
}

}  // namespace holdfast::hdf5

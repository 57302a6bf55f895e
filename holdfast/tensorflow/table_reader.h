// Reads the index of a TensorFlow checkpoint, which is a sorted table of keys and
// values in the format of LevelDB:
//
//   data blocks, a block for meta data (empty), the index block, the footer
//
//   block:   entries, the offsets of the restarts (4 bytes each) and their number, then
//            outside the block's length: a byte for the compression and the masked
//            CRC32C of all before it
//   entry:   varints: bytes shared with the key before, bytes of the key that follow,
//            bytes of the value; then those bytes of key and value. At a restart
//            nothing is shared.
//   index block: an entry for each data block, whose value is a handle
//   handle:  varints: offset and length of a block
//   footer:  the handles of meta block and index block, zeros up to 40 bytes, a magic
//            number of 8 bytes
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/env/source_sink.h"

namespace holdfast::bundle {

inline constexpr uint64_t kTableMagic = 0xdb4775248b80fb57;
inline constexpr int64_t kFooterBytes = 48;
// The compression and the CRC after each block.
inline constexpr int64_t kTrailerBytes = 5;
// An index of a million tensors has about half of this.
inline constexpr int64_t kMaxIndexBytes = int64_t{256} << 20;

// The bytes of the file that a block takes, without its trailer.
struct BlockHandle {
  int64_t offset = 0;
  int64_t size = 0;
};

struct TableEntry {
  std::string key{};
  ByteView value{};     // in the bytes of the table
  int64_t offset = 0;   // of the value in the file
  BlockHandle block{};  // the block that has the entry
};

// A block that cannot be read.
struct BadBlock {
  BlockHandle block{};
  std::string what{};
};

// The whole table in memory.
class Table {
 public:
  // Reads a file of at most kMaxIndexBytes. Fails with kCorrupt if a length or offset
  // leads out of the file, if blocks overlap, if keys are not sorted, if a checksum is
  // wrong, and if the keys take more memory than an index of this size needs. Fails
  // with kUnsupported for compressed blocks. If `bad` is not null, a data block that
  // cannot be read is added to it and skipped.
  static Result<Table> open(const Source& source, std::vector<BadBlock>* bad = nullptr);

  Table(Table&&) = default;
  Table& operator=(Table&&) = default;

  const std::vector<TableEntry>& entries() const { return entries_; }
  // All bytes of the file.
  ByteView bytes() const { return bytes_; }

 private:
  explicit Table(Bytes bytes) : bytes_(std::move(bytes)) {}

  Bytes bytes_;
  std::vector<TableEntry> entries_;
};

}  // namespace holdfast::bundle

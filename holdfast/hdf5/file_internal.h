// An HDF5 file that is being read: its superblock, and its blocks by address.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "holdfast/env/source_sink.h"
#include "holdfast/hdf5/cursor.h"

namespace holdfast::hdf5 {

inline constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
inline constexpr int64_t kSignatureBytes = 8;

// Returns the offset of the superblock, which is 0, 512, 1024, 2048 and so on. Fails
// with kCorrupt if there is none.
Result<int64_t> find_signature(const Source& source);

// Replaces what does not belong into a message, and cuts long names.
std::string printable(std::string_view name);

// Fails with kCorrupt unless the last four bytes are the checksum of those before them.
Result<void> check_sum(ByteView block, std::string_view where, std::string_view what);

class File {
 public:
  // Finds the superblock, which may come after a block of the user's, and checks it.
  static Result<File> open(std::shared_ptr<const Source> source);

  const std::string& name() const { return source_->name(); }
  const std::shared_ptr<const Source>& source() const { return source_; }
  Sizes sizes() const { return sizes_; }
  // The object header of the root group.
  uint64_t root() const { return root_; }
  // The offset of the superblock in the source. Addresses count from there.
  int64_t base() const { return base_; }
  // The offset of the superblock's field for the end of the file, and the base that the
  // field counts from. The superblock's checksum, if it has one, ends at `superblock_bytes`.
  int64_t end_field() const { return end_field_; }
  uint64_t end_base() const { return end_base_; }
  int superblock_version() const { return version_; }
  int64_t superblock_bytes() const { return superblock_bytes_; }

  // Returns the offset of the bytes in the source. Fails with kCorrupt, naming object and
  // structure, if they do not lie inside it.
  Result<int64_t> place_of(uint64_t address, uint64_t count, std::string_view where,
                           std::string_view what) const;
  // Reads a structure. Fails with kCorrupt, too, if the structures that were read so far
  // are far more than the file has: in a file that was made to be slow, thousands of
  // objects share one large structure.
  Result<Bytes> read(uint64_t address, uint64_t count, std::string_view where,
                     std::string_view what) const;
  // The same for a structure that begins with four letters, which are checked.
  Result<Bytes> read_block(uint64_t address, uint64_t count, std::string_view letters,
                           std::string_view where, std::string_view what) const;
  Cursor cursor(ByteView bytes) const { return {bytes, sizes_}; }

 private:
  explicit File(std::shared_ptr<const Source> source);
  Result<void> read_superblock();
  Result<void> read_old(Cursor& cursor);
  Result<void> read_new(Cursor& cursor, ByteView head);
  Result<void> set_sizes(uint8_t offset, uint8_t length);
  Result<void> check_end(uint64_t stored_base, uint64_t end) const;

  std::shared_ptr<const Source> source_;
  // How many bytes of structures may still be read. Copies of the file share it.
  std::shared_ptr<uint64_t> readable_;
  int64_t base_ = 0;
  int version_ = 0;
  Sizes sizes_;
  uint64_t root_ = kUndefined;
  int64_t end_field_ = 0;
  uint64_t end_base_ = 0;
  int64_t superblock_bytes_ = 0;
};

}  // namespace holdfast::hdf5

// Fractal heaps: where newer groups keep their links, and objects many attributes.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "holdfast/hdf5/file_internal.h"

namespace holdfast::hdf5 {

class FractalHeap {
 public:
  static Result<FractalHeap> open(const File& file, uint64_t address,
                                  const std::string& where);

  // The bytes of the object with this ID. nullopt if the heap keeps it outside its
  // blocks, because it is large.
  Result<std::optional<Bytes>> read_object(ByteView id);
  uint64_t id_bytes() const { return id_bytes_; }

 private:
  FractalHeap(const File& file, const std::string& where)
      : file_(file), where_(where) {}

  Result<void> read_head(uint64_t address);
  Result<void> check_head() const;
  // Reads bytes at an offset of the heap: finds the block that has them, beginning in
  // the root block.
  Result<Bytes> read_managed(uint64_t offset, uint64_t count);
  Result<const Bytes*> read_direct(uint64_t block, uint64_t bytes);
  Result<const Bytes*> read_indirect(uint64_t block, uint64_t bytes);
  Result<uint64_t> find_block(uint64_t& offset, uint64_t& block_bytes);
  Result<uint64_t> read_child(uint64_t block, uint64_t row, uint64_t column,
                              uint64_t rows);
  uint64_t row_bytes(uint64_t row) const;
  // The offset in an indirect block at which a row begins.
  uint64_t row_begin(uint64_t row) const;

  const File& file_;
  const std::string where_;
  uint64_t id_bytes_ = 0;
  uint64_t offset_bytes_ = 0, length_bytes_ = 0;
  bool has_sums_ = false;
  uint64_t width_ = 0, first_bytes_ = 0, most_direct_ = 0, most_managed_ = 0;
  uint64_t root_ = 0, root_rows_ = 0, max_bits_ = 0;
  // The blocks that were read, by address. Objects come in the order of a hash, so each
  // is likely to lie in another block than the one before.
  std::unordered_map<uint64_t, Bytes> blocks_;
};

}  // namespace holdfast::hdf5

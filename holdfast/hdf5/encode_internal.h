// Makes the structures of HDF5 that every version of it reads: superblock 0, object
// headers 1, groups with symbol tables, and strings in a global heap.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/hdf5/cursor.h"
#include "holdfast/state/tensor.h"

namespace holdfast::hdf5 {

// Attributes of the root: texts by name.
using KeptAttributes = std::map<std::string, std::string>;

// A text in a global heap: the address of the heap, and the number of the text in it.
struct HeapText {
  uint64_t heap = kUndefined;
  uint64_t number = 0;
};

// The addresses of the structures of a group. All are kUndefined for a dataset.
struct GroupPlace {
  uint64_t header = kUndefined;
  uint64_t tree = kUndefined;
  uint64_t heap = kUndefined;
};

// A link of a group.
struct Symbol {
  std::string name{};
  uint64_t header = 0;
  GroupPlace group{};
};

// Appends structures to the bytes of a file from its beginning. Each call returns the
// address of what it added.
class Encoder {
 public:
  const Bytes& bytes() const { return bytes_; }
  void align(int64_t to);

  // Leaves room for the superblock, which finish_superblock() and put_end() fill in.
  size_t begin_file();
  void finish_superblock(size_t at, const GroupPlace& root);
  void put_end(uint64_t end);
  void put_address(size_t at, uint64_t address);

  // Adds the texts to a global heap, as objects 1, 2, … Returns kUndefined if there are
  // none.
  uint64_t add_texts(std::span<const std::string_view> texts);
  // The symbols are in order of their names. The attributes are the first texts in the
  // heap, in order of their names.
  GroupPlace add_group(std::span<const Symbol> symbols,
                       const KeptAttributes& attributes, uint64_t heap);
  // Returns the address of the header, and where in bytes() it has the address of the
  // elements, which is kUndefined until put_address(). A dataset of BF16 needs the text
  // kBfloat16.
  std::pair<uint64_t, size_t> add_dataset(Dtype dtype, const Shape& shape,
                                          int64_t elements_bytes,
                                          const HeapText& bfloat16);

 private:
  struct Message {
    uint16_t type;
    Bytes data;
  };
  // A child of a node of a B-tree, and where its last name lies in the local heap.
  struct Child {
    uint64_t address;
    uint64_t last_name;
  };

  void number(uint64_t value, size_t bytes);
  void letters(std::string_view text);
  void append(ByteView bytes);
  uint64_t add_header(std::span<const Message> messages);
  uint64_t add_names(std::span<const Symbol> symbols, std::vector<uint64_t>& offsets);
  uint64_t add_tree(std::span<const Symbol> symbols, std::span<const uint64_t> names);
  Child add_symbols(std::span<const Symbol> symbols, std::span<const uint64_t> names);
  Child add_node(std::span<const Child> children, int level, uint64_t first_name);

  Bytes bytes_;
};

}  // namespace holdfast::hdf5

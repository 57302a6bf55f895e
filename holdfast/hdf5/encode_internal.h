// Makes the structures of HDF5 that every version of it reads: superblock 0, object
// headers 1, groups with symbol tables, and strings in a global heap.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/hdf5/object_header_internal.h"
#include "holdfast/state/tensor.h"

namespace holdfast::hdf5 {

// Collects the fields of one message.
class Fields {
 public:
  Fields& number(uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i, value >>= 8) {
      data_.push_back(static_cast<std::byte>(value & 0xff));
    }
    return *this;
  }
  Fields& text(std::string_view text, size_t padded) {
    append(bytes_of(text));
    data_.resize(data_.size() + padded - text.size());
    return *this;
  }
  Fields& append(ByteView bytes) {
    data_.insert(data_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Bytes take() { return std::move(data_); }

 private:
  Bytes data_;
};

// A text in the global heap: its length, the address of the heap, and its number there.
inline constexpr size_t kHeapTextBytes = 16;

// Rounds up to a multiple of 8.
size_t rounded(size_t size);

// Datatype messages. BF16 is stored as Keras does it, as bytes without a meaning.
Bytes type_of(Dtype dtype);
Bytes text_type(size_t bytes);  // a text of a fixed length
Bytes heap_text_type();         // a text in the global heap, in UTF-8, of any length
Bytes enumeration_type(Dtype dtype, const EnumNames& names);

// Dataspace messages.
Bytes space_of(std::span<const int64_t> sizes);
Bytes null_space();  // of a value that is none

// A value as HDF5 stores it.
struct StoredValue {
  Bytes type{};
  Bytes space{};
  Bytes data{};
};

Bytes attribute_message(std::string_view name, const StoredValue& value);

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

// A link of a group. A soft link has a target, and then no header.
struct Symbol {
  std::string name{};
  uint64_t header = 0;
  GroupPlace group{};
  std::optional<std::string> target{};
};

struct NewDataset {
  Bytes type{};
  Bytes space{};
  uint64_t address = kUndefined;  // of the elements
  uint64_t bytes = 0;
  std::span<const Bytes> attributes{};
  uint64_t links = 1;  // how many names the dataset has
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
  // The symbols are in order of their names. The attributes are messages.
  GroupPlace add_group(std::span<const Symbol> symbols,
                       std::span<const Bytes> attributes);
  // Returns the address of the header, and where in bytes() it has the address of the
  // elements, which put_address() can change.
  std::pair<uint64_t, size_t> add_dataset(const NewDataset& dataset);
  // Adds elements that are part of the metadata.
  uint64_t add_bytes(ByteView bytes);

 private:
  struct Message {
    MessageType type;
    Bytes data;
  };
  // Where in the local heap a symbol's name and the target of a soft link lie.
  struct NameOffsets {
    uint64_t name = 0;
    uint64_t target = 0;
  };
  // A child of a node of a B-tree, and where its last name lies in the local heap.
  struct Child {
    uint64_t address;
    uint64_t last_name;
  };

  void number(uint64_t value, size_t bytes);
  void letters(std::string_view text);
  void append(ByteView bytes);
  uint64_t add_header(std::span<const Message> messages, uint64_t links);
  uint64_t add_names(std::span<const Symbol> symbols, std::vector<NameOffsets>& offsets);
  uint64_t add_tree(std::span<const Symbol> symbols,
                    std::span<const NameOffsets> names);
  Child add_symbols(std::span<const Symbol> symbols,
                    std::span<const NameOffsets> names);
  Child add_node(std::span<const Child> children, int level, uint64_t first_name);

  Bytes bytes_;
};

}  // namespace holdfast::hdf5

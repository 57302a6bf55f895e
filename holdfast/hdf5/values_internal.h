// What an HDF5 file holds that is no tensor: strings, attributes, datasets without a
// value.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holdfast/hdf5/dataset_internal.h"
#include "holdfast/state/object.h"

namespace holdfast::hdf5 {

// Strings that lie in the file's global heap.
class GlobalHeap {
 public:
  explicit GlobalHeap(const File& file) : file_(file) {}

  // The object with this number in the collection at this address.
  Result<ByteView> find(uint64_t address, uint32_t number, const std::string& where);

 private:
  struct Collection {
    Bytes bytes;
    std::map<uint32_t, ByteView> objects{};
  };

  Result<Collection*> read_collection(uint64_t address, const std::string& where);

  const File& file_;
  std::unordered_map<uint64_t, Collection> collections_;
  // The bytes of all collections that were read. Those of a whole file cannot be more
  // than the file.
  uint64_t total_ = 0;
};

struct Attribute {
  std::string name{};
  Object value{};
  std::optional<Hdf5Value> stored{};  // without its value; none for texts in a heap
};

// Reads values that are no tensors.
class ValueReader {
 public:
  explicit ValueReader(const File& file);

  // The attributes of the object at a path in the order of their names. Those that an
  // Object cannot hold are not among them, but in left_out() or not_kept().
  Result<std::vector<Attribute>> read_attributes(const ObjectHeader& header,
                                                 const std::string& path);
  // The value of a dataset of strings: a list, or nested lists, unless it is a scalar.
  // Also as it is stored, if it does not lie in a heap.
  struct Strings {
    Object value{};
    std::optional<Hdf5Value> stored{};
  };
  Result<Strings> read_strings(const Dataset& dataset);

  std::vector<std::string>& left_out() { return left_out_; }  // as in Contents
  std::vector<std::string>& not_kept() { return not_kept_; }  // as in Hdf5Details

 private:
  // The object whose attributes are read, for messages and for lists of names.
  struct Owner {
    const std::string& path;
    std::string where;
  };
  Result<std::optional<Attribute>> read_attribute(ByteView data, const Owner& owner);
  Result<void> add_attribute(ByteView data, const Owner& owner,
                             std::vector<Attribute>& into);
  Result<void> add_heap_attributes(const Message& info, const Owner& owner,
                                   std::vector<Attribute>& into);
  void leave_out(const Owner& owner, std::string_view attribute, std::string_view why);
  // Counts what values take in memory. Fails with kUnsupported if it is far more than
  // the file has: elements that were never written, or many that share one text.
  Result<void> spend(int64_t elements, int64_t bytes, const std::string& where);
  // nullopt for values that an Object cannot hold.
  Result<std::optional<Object>> value_of(const Datatype& type, const Shape& shape,
                                         ByteView data, const std::string& where);
  Result<Object> nested(const Datatype& type, const Shape& shape, int k, Cursor& cursor,
                        const std::string& where);
  Result<Object> element(const Datatype& type, Cursor& cursor,
                         const std::string& where);

  const File& file_;
  GlobalHeap heap_;
  int64_t spendable_;
  std::vector<std::string> left_out_;
  std::vector<std::string> not_kept_;
};

// How messages name the object at a path of a file.
std::string place_of_path(const File& file, std::string_view path);

}  // namespace holdfast::hdf5

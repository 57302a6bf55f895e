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
};

// Reads values that are no tensors.
class ValueReader {
 public:
  explicit ValueReader(const File& file) : file_(file), heap_(file) {}

  // The attributes of an object in the order of their names. Those that an Object
  // cannot hold are left out, and listed in simplified().
  Result<std::vector<Attribute>> read_attributes(const ObjectHeader& header,
                                                 const std::string& where);
  // The value of a dataset of strings. A list, or nested lists, unless it is a scalar.
  Result<Object> read_strings(const Dataset& dataset);

  std::vector<std::string>& simplified() { return simplified_; }

 private:
  Result<std::optional<Attribute>> read_attribute(ByteView data,
                                                  const std::string& where);
  Result<void> add_attribute(ByteView data, const std::string& where,
                             std::vector<Attribute>& into);
  Result<void> add_heap_attributes(const Message& info, const std::string& where,
                                   std::vector<Attribute>& into);
  // nullopt for values that an Object cannot hold.
  Result<std::optional<Object>> value_of(const Datatype& type, const Shape& shape,
                                         ByteView data, const std::string& where);
  Result<Object> nested(const Datatype& type, const Shape& shape, int k, Cursor& cursor,
                        const std::string& where);
  Result<Object> element(const Datatype& type, Cursor& cursor,
                         const std::string& where);

  const File& file_;
  GlobalHeap heap_;
  std::vector<std::string> simplified_;
};

}  // namespace holdfast::hdf5

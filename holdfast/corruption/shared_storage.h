// Which elements have bytes of their own. Tensors of one file may share bytes, as views of
// torch do, and a bit that two tensors share is one site and not two. Elements of HDF5 may
// have no bytes at all.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "holdfast/contents/contents.h"

namespace holdfast {

// Whether an element has bytes in its file. In HDF5, chunks that were never written have
// none.
bool is_stored(const Contents& contents, TensorId tensor, int64_t element);

class SharedStorage {
 public:
  // `tensors` are in order: a byte that several of them have belongs to the first one.
  SharedStorage(const Contents& contents, std::span<const TensorId> tensors);

  // Whether tensors of these contents can share bytes at all.
  static bool is_possible(const Contents& contents);

  // Whether the element has a byte that belongs to an earlier tensor.
  bool is_taken(TensorId tensor, int64_t element) const;

 private:
  // A box of a tensor in a file.
  struct Place {
    Box box;
    Map map;
    int64_t element_bytes;
    std::string file;
    int64_t first, last;  // the range of bytes that the box touches
  };
  // The places of a tensor, and those of earlier tensors in the same ranges of bytes.
  struct Entry {
    std::vector<Place> own;
    std::vector<Place> earlier;
  };

  static std::vector<Place> places_of(const Contents& contents, TensorId tensor);

  // Only tensors that share a range with an earlier one.
  std::unordered_map<TensorId, Entry> entries_;
  std::unordered_map<TensorId, Shape> shapes_;
};

}  // namespace holdfast

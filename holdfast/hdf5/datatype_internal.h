// Datatypes and dataspaces of HDF5, as far as tensors and their notes have them.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/hdf5/file_internal.h"
#include "holdfast/state/tensor.h"

namespace holdfast::hdf5 {

// The attribute by which Keras says that elements of two bytes are bf16, and its value.
inline constexpr std::string_view kDtypeAttribute = "dtype";
inline constexpr std::string_view kBfloat16 = "bfloat16";

// Keras splits a list of names that does not fit into one attribute into name0, name1,
// and so on.
inline constexpr std::array<std::string_view, 2> kSplitAttributes{"layer_names",
                                                                  "weight_names"};

struct Datatype {
  enum class Kind {
    kNumber,    // what a tensor can hold: `dtype` says it
    kText,      // strings of a fixed length
    kHeapText,  // strings in the global heap
    kOpaque,    // bytes without a meaning; Keras stores bf16 as such
    kOther,     // `what` says it
  };
  Kind kind = Kind::kOther;
  Dtype dtype = Dtype::kU8;
  uint64_t bytes = 0;  // of one element
  // The bytes of a big-endian number; 0 if the elements need no swapping.
  int64_t swapped = 0;
  EnumNames names{};  // of an enumeration of integers
  // Whether elements refer to other objects of the file, and mean nothing outside it.
  bool refers = false;
  // For messages: "a compound type".
  std::string what{};
  Bytes message{};  // what the type was read from
};

// Swaps big-endian numbers of `width` bytes.
void swap_numbers(ByteSpan bytes, int64_t width);

Result<Datatype> read_datatype(const File& file, ByteView data,
                               const std::string& where);

struct Dataspace {
  bool null = false;  // a dataset without a value
  std::vector<int64_t> sizes{};
  // How large each dimension may become; kUnlimited for any size.
  std::vector<int64_t> most_sizes{};
};
inline constexpr int64_t kUnlimited = INT64_MAX;

Result<Dataspace> read_dataspace(const File& file, ByteView data,
                                 const std::string& where);

}  // namespace holdfast::hdf5

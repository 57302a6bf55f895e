// What an HDF5 file will have at which path. Made before the first byte is written.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/contents/side_metadata.h"
#include "holdfast/hdf5/stored_value_internal.h"

namespace holdfast::hdf5 {

struct NewAttribute {
  std::string name{};
  NativeValue value{};
};

// A group, or a link to a dataset, or a soft link.
struct Node {
  std::map<std::string, Node> children{};
  std::optional<TensorId> tensor{};
  std::optional<NativeValue> value{};      // a dataset that is no tensor
  std::optional<std::string> target{};     // of a soft link
  std::vector<NewAttribute> attributes{};  // those of a tensor are in WritePlan
  bool kept = false;                       // a group that is written even if it is empty

  bool is_leaf() const { return tensor || value || target; }
  bool is_written() const { return is_leaf() || kept || !children.empty(); }
};

struct WritePlan {
  Node root{};
  // For each tensor: under which name and dtype it is read again, how many paths lead to
  // it, and its attributes.
  std::vector<StoredAs> stored{};
  std::vector<uint64_t> links{};
  std::vector<std::vector<NewAttribute>> attributes{};
  // The objects of the contents, if HDF5 cannot hold all of them itself; else none.
  Object objects{};
};

// The plan refers to the objects of the contents, which must outlive it.
WritePlan plan_write(const Contents& contents);

}  // namespace holdfast::hdf5

// An opened HDF5 file: its contents, and what patching and checking need beside them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/hdf5/decoded_source_internal.h"
#include "holdfast/hdf5/values_internal.h"

namespace holdfast::hdf5 {

struct OpenedFile {
  File file;
  Contents contents;
  // One for each tensor of the contents.
  std::vector<std::shared_ptr<const Dataset>> datasets{};
  // The source of the contents.
  std::shared_ptr<const DecodedSource> decoded{};
};

Result<OpenedFile> open_file(std::shared_ptr<const Source> source);

// What the groups of a file lead to.
struct Tree {
  std::vector<Tensor> tensors{};
  std::vector<std::shared_ptr<const Dataset>> datasets{};  // one for each tensor
  // By path: the attributes of objects, and the values that are no tensors.
  Object::Dict attributes{};
  Object::Dict values{};
  std::vector<Attribute> root_attributes{};
  std::vector<std::string> left_out{};  // as in Contents
  Hdf5Details details{};
};

Result<Tree> read_tree(const File& file);

}  // namespace holdfast::hdf5

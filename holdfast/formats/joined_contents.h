// Contents of several files that are one checkpoint.
#pragma once

#include <string>
#include <vector>

#include "holdfast/contents/checked_source.h"
#include "holdfast/contents/contents.h"

namespace holdfast {

// Collects the contents of the files.
class JoinedContents {
 public:
  // Adds the tensors and objects of a file. Dicts of objects are merged. Fails with
  // kCorrupt if another file has a different value at the same place.
  Result<void> add(Contents file);
  // Fails with kCorrupt if two tensors have the same name. `where` is for messages.
  Result<Contents> take(const std::string& where) &&;

 private:
  struct Piece {
    TensorId tensor;
    Box box;
    HolderId holder;
    Map map;
  };

  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<Holder> holders_;
  std::vector<HolderDigests::Part> digests_;
  std::vector<Tensor> tensors_;
  std::vector<Piece> pieces_;
  Object objects_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> simplified_;
  std::vector<std::string> left_out_;
};

}  // namespace holdfast

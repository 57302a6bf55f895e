// The walk over the nodes of a pickle that makes objects and views of them. Shared by
// torch_zip_tree.cpp, which walks values, and torch_zip_tensors.cpp.
#pragma once

#include <unordered_set>

#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::torch_zip {

// How many bytes the tensors of a file may have that are larger than their storages.
inline constexpr int64_t kMaxExpanded = int64_t{1} << 32;

class Walker {
 public:
  Walker(const Pickle& pickle, std::string_view where, size_t pickle_bytes);

  Result<Tree> run() &&;

 private:
  using Call = PickleNode::Call;
  using Dict = PickleNode::Dict;
  using Global = PickleNode::Global;
  using Persistent = PickleNode::Persistent;

  Result<Object> walk(PickleId id);
  // Walks a value of a container. If the value cannot be read, notes that it is left out,
  // forgets all of its parts, and returns nullopt. Fails if the pickle contradicts itself.
  Result<std::optional<Object>> walk_if_readable(PickleId id);
  // How far the walk has come.
  struct Mark {
    size_t open, keys, views, simplified, left_out;
  };
  Mark mark() const;
  void go_back(const Mark& mark);
  // The message of an error says where and what. The list has the name instead.
  Result<void> note_left_out(std::string_view message);
  Result<Object> walk_value(PickleId id);
  // A storage that no tensor is around, or, before torch 1.6, the class of a module.
  Result<Object> walk_outside(PickleId id, const Persistent& outside);
  Result<Object> walk_plain(const PickleNode& node);
  Result<std::vector<Object>> walk_items(const std::vector<PickleId>& items);
  Result<Object> walk_dict(const Dict& dict);
  // Returns nullopt, and notes that the entry is left out, for a key that is no text,
  // number or None, and no tuple of these.
  Result<std::optional<Object>> walk_key(PickleId id);
  Result<Object> walk_global(const Global& global);
  Result<Object> walk_call(const Call& call);
  // An object of any other class is never made. Its class becomes text, and its parts
  // stay data, so that its tensors can be read.
  Result<Object> walk_foreign_object(const Call& call, const std::string& name);
  Result<Object> walk_parts_of_object(const std::string& name, const Call& call);
  Result<void> add_part(std::string_view key, PickleId id, Object::Dict& made);
  Result<void> note_simplified(const std::string& name);
  // The arguments are ("cpu",) or ("cuda", 0).
  Result<Object> walk_device(const std::vector<PickleId>& arguments);
  // Pickle protocol 2 has no bytes: it encodes them as text with code points below 256.
  // An array of bytes is made of such text, or of bytes.
  Result<Object> walk_bytes(std::string_view function,
                            const std::vector<PickleId>& arguments);
  // Tensors (torch_zip_tensors.cpp).
  Result<Object> walk_tensor(std::string_view function,
                             const std::vector<PickleId>& arguments);
  // A tensor around which the pickle puts something else. It stands at the same place of
  // the tree.
  Result<Object> walk_inner(PickleId id);
  Result<Object> walk_parameter(std::string_view function,
                                const std::vector<PickleId>& arguments);
  // The arguments are a function, the class, the arguments of the function, and the
  // attributes of the object. A class that keeps its bytes in other tensors (DTensor) is
  // read as a dict of its attributes, and any other as a plain tensor.
  Result<Object> walk_subclass(const std::vector<PickleId>& arguments);
  // The tensors of which a sparse tensor is made, by the names that torch has for them.
  Result<Object> walk_sparse(const std::vector<PickleId>& arguments);
  // The integers of a quantized tensor, and what makes numbers of them.
  Result<Object> walk_quantized(std::string_view function,
                                const std::vector<PickleId>& arguments);
  // A dict of named parts that stands for a tensor which is made of them.
  Result<Object> walk_parts(const std::string& kind, const std::vector<PickleId>& parts,
                            const std::array<std::string_view, 4>& names);
  // Names a view by its place. If another tensor has the name already, because a key has
  // a dot in it, the view is named by its path: ["a.b"].
  Result<Object> add_view(View view);
  // An expanded view can be larger than its file by any factor.
  Result<void> check_growth(const View& view);
  // Counts memory that the result takes. Fails if the limit is reached.
  Result<void> spend(size_t bytes);

  std::string path() const { return path_of_keys(keys_); }
  std::string name() const { return name_of_keys(keys_); }
  ArgumentReader here() const { return {pickle_, where_, path()}; }

  const Pickle& pickle_;
  const std::string_view where_;
  size_t budget_;
  int64_t expanded_left_ = kMaxExpanded;
  // The nodes on the way from the root to the current node. Finding one of them again
  // means that an object contains itself.
  std::vector<PickleId> open_;
  std::vector<bool> is_open_;
  // The keys that lead to the current object.
  std::vector<Object> keys_;
  std::unordered_set<std::string> names_;  // of the views
  Tree tree_;
};

}  // namespace holdfast::torch_zip

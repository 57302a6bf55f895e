// Turns the calls of a pickle that make tensors into views of storages. A tensor that
// is more than a view becomes a dict of the tensors that it is made of.
#include <algorithm>

#include "holdfast/formats/torch_zip_walker_internal.h"

namespace holdfast::torch_zip {
namespace {

// Whether the attributes of a tensor are just those of a torch.nn.Buffer.
bool is_buffer(const Pickle& pickle, PickleId state) {
  const auto* attributes = pickle[state].as<PickleNode::Dict>();
  if (attributes == nullptr || attributes->items.empty()) return false;
  return std::ranges::all_of(attributes->items, [&](const auto& item) {
    const auto* name = pickle[item.first].template as<std::string>();
    return name != nullptr && (*name == "persistent" || *name == "_is_buffer");
  });
}

}  // namespace

Result<Object> Walker::walk_tensor(std::string_view function,
                                   const std::vector<PickleId>& arguments) {
  if (function == "torch._utils._rebuild_parameter" ||
      function == "torch._utils._rebuild_parameter_with_state") {
    return walk_parameter(function, arguments);
  }
  if (function == "torch._utils._rebuild_sparse_tensor") return walk_sparse(arguments);
  if (function == "torch._utils._rebuild_qtensor" && arguments.size() == 7) {
    return walk_quantized(function, arguments);
  }
  if (function == "torch._utils._rebuild_nested_tensor") {
    return walk_parts("torch.nested", arguments,
                      {"buffer", "sizes", "strides", "storage_offsets"});
  }
  if (function == "torch._utils._rebuild_device_tensor_from_cpu_tensor" &&
      arguments.size() == 4) {
    return walk_inner(arguments[0]);
  }
  if (function == "torch._utils._rebuild_meta_tensor_no_storage") {
    return here().odd("is a tensor of the device meta, which has no bytes");
  }
  return add_view(HOLDFAST_TRY(here().view(function, arguments)));
}

Result<Object> Walker::walk_inner(PickleId id) {
  Object data = HOLDFAST_TRY(walk(id));
  const bool tensor = data.as<Object::TensorName>() != nullptr ||
                      data.as<Object::Dict>() != nullptr;
  if (!tensor) return here().broken("is a parameter without a tensor");
  return data;
}

Result<Object> Walker::walk_parameter(std::string_view function,
                                      const std::vector<PickleId>& arguments) {
  if (arguments.size() != (function.ends_with("_with_state") ? 4U : 3U)) {
    return here().refuse(function);
  }
  Object data = HOLDFAST_TRY(walk_inner(arguments[0]));
  if (arguments.size() == 4) {
    HOLDFAST_TRY(note_simplified("torch.nn.parameter.Parameter with attributes"));
  }
  return data;
}

Result<Object> Walker::walk_subclass(const std::vector<PickleId>& arguments) {
  if (arguments.size() != 4) return here().refuse("torch._tensor._rebuild_from_type");
  const auto* function = pickle_[arguments[0]].as<Global>();
  const auto* type = pickle_[arguments[1]].as<Global>();
  if (function == nullptr || type == nullptr) {
    return here().broken("is made by no function, or of no class");
  }
  if (function->name == "torch._utils._rebuild_wrapper_subclass") {
    return walk_parts_of_object(type->name, {.state = arguments[3]});
  }
  Object data = HOLDFAST_TRY(
      walk_tensor(function->name, HOLDFAST_TRY(here().tuple(arguments[2]))));
  if (!is_buffer(pickle_, arguments[3])) HOLDFAST_TRY(note_simplified(type->name));
  return data;
}

Result<Object> Walker::walk_sparse(const std::vector<PickleId>& arguments) {
  if (arguments.size() != 2) {
    return here().refuse("torch._utils._rebuild_sparse_tensor");
  }
  const Object layout = HOLDFAST_TRY(walk(arguments[0]));
  const auto* name = layout.as<std::string>();
  const auto parts = HOLDFAST_TRY(here().tuple(arguments[1]));
  if (name == nullptr) return here().broken("is a sparse tensor of no layout");
  if (*name == "torch.sparse_coo") {
    return walk_parts(*name, parts, {"indices", "values", "size", "is_coalesced"});
  }
  return walk_parts(*name, parts,
                    {"compressed_indices", "plain_indices", "values", "size"});
}

Result<Object> Walker::walk_quantized(std::string_view function,
                                      const std::vector<PickleId>& arguments) {
  HOLDFAST_TRY(note_simplified("torch.quantized"));
  Object::Dict made{
      {{Object(std::string(kClassKey)), Object(std::string("torch.quantized"))}}};
  keys_.emplace_back(std::string("int_repr"));
  Object integers =
      HOLDFAST_TRY(add_view(HOLDFAST_TRY(here().view(function, arguments))));
  keys_.pop_back();
  made.items.emplace_back(Object(std::string("int_repr")), std::move(integers));
  HOLDFAST_TRY(add_part("quantizer", arguments[4], made));
  return Object(std::move(made));
}

Result<Object> Walker::walk_parts(const std::string& kind,
                                  const std::vector<PickleId>& parts,
                                  const std::array<std::string_view, 4>& names) {
  if (parts.size() < 3 || parts.size() > names.size()) {
    return here().broken("is made of another number of parts");
  }
  HOLDFAST_TRY(note_simplified(kind));
  HOLDFAST_TRY(spend(kind.size()));
  Object::Dict made{{{Object(std::string(kClassKey)), Object(kind)}}};
  for (size_t i = 0; i < parts.size(); ++i) {
    HOLDFAST_TRY(add_part(names[i], parts[i], made));
  }
  return Object(std::move(made));
}

Result<Object> Walker::add_view(View view) {
  view.name = name();
  view.path = path();
  HOLDFAST_TRY(spend(sizeof(View) + 4 * view.name.size() + view.key.size()));
  HOLDFAST_TRY(check_growth(view));
  const auto taken = [&] { return view.name.empty() || names_.contains(view.name); };
  if (taken()) view.name = view.path;
  if (taken()) return here().odd("has the name of another tensor");
  names_.insert(view.name);
  Object leaf(Object::TensorName{view.name});
  tree_.views.push_back(std::move(view));
  return leaf;
}

Result<void> Walker::check_growth(const View& view) {
  const int64_t bytes = view.shape.elements() * bytes_of(view.dtype);
  if (bytes <= view.storage_bytes) return {};
  if (bytes > expanded_left_) {
    return here().odd(fmt::format(
        "is expanded to {} bytes; expected at most {} in all expanded tensors", bytes,
        kMaxExpanded));
  }
  expanded_left_ -= bytes;
  return {};
}

}  // namespace holdfast::torch_zip

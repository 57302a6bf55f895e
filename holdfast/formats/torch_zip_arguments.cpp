// Reads the arguments of the functions by which torch makes tensors.
#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::torch_zip {
namespace {

using Call = PickleNode::Call;
using Dict = PickleNode::Dict;
using Global = PickleNode::Global;
using Persistent = PickleNode::Persistent;
using Tuple = PickleNode::Tuple;

// The sign bits that a conjugated or negated view has to change. Returns nullopt for
// dtypes whose sign is no bit of its own.
std::optional<Bytes> sign_mask(Dtype dtype, bool conjugated, bool negated) {
  const bool complex = dtype == Dtype::kC64 || dtype == Dtype::kC128;
  const bool real = dtype == Dtype::kF16 || dtype == Dtype::kBf16 ||
                    dtype == Dtype::kF32 || dtype == Dtype::kF64;
  if (!complex && (!real || conjugated)) return std::nullopt;
  Bytes mask(static_cast<size_t>(bytes_of(dtype)));
  if (negated) mask[(complex ? mask.size() / 2 : mask.size()) - 1] = std::byte{0x80};
  if (complex && conjugated != negated) mask.back() = std::byte{0x80};
  return mask;
}

}  // namespace

Result<std::vector<PickleId>> ArgumentReader::tuple(PickleId id) const {
  const auto* found = pickle_[id].as<Tuple>();
  if (found == nullptr) return broken("has another value; expected a tuple");
  return found->items;
}

Result<std::string> ArgumentReader::text(PickleId id) const {
  const auto* found = pickle_[id].as<std::string>();
  if (found == nullptr) return broken("has another value; expected text");
  return *found;
}

Result<int64_t> ArgumentReader::integer(PickleId id) const {
  const auto* found = pickle_[id].as<int64_t>();
  if (found == nullptr) return broken("has another value; expected an integer");
  return *found;
}

Result<std::vector<int64_t>> ArgumentReader::integers(PickleId id) const {
  PickleId items = id;
  if (const auto* size = pickle_[id].as<Call>()) {
    const auto& arguments = pickle_[size->arguments].as<Tuple>()->items;
    if (function_of(pickle_, *size) == "torch.Size" && arguments.size() == 1) {
      items = arguments[0];
    }
  }
  std::vector<int64_t> numbers;
  for (const PickleId item : HOLDFAST_TRY(tuple(items))) {
    numbers.push_back(HOLDFAST_TRY(integer(item)));
  }
  return numbers;
}

// The functions differ in what follows the storage, offset, sizes and strides. A
// quantized tensor has the parameters of its quantizer there, which the caller reads.
Result<View> ArgumentReader::view(std::string_view function,
                                  const std::vector<PickleId>& arguments) const {
  const bool v3 = function == "torch._utils._rebuild_tensor_v3";
  const bool v2 = function == "torch._utils._rebuild_tensor_v2";
  const bool v1 = function == "torch._utils._rebuild_tensor";
  const bool quantized = function == "torch._utils._rebuild_qtensor";
  const size_t least = v1 ? 4 : v2 ? 6 : 7;
  const size_t most = v2 || v3 ? least + 1 : least;
  if ((!v1 && !v2 && !v3 && !quantized) || arguments.size() < least ||
      arguments.size() > most) {
    return refuse(function);
  }
  View view;
  std::optional<Dtype> dtype;
  if (v3) dtype = HOLDFAST_TRY(find_dtype(arguments[6]));
  HOLDFAST_TRY(read_storage(arguments[0], dtype, view));
  const auto offset = checked_add(view.offset, HOLDFAST_TRY(integer(arguments[1])));
  if (!offset) return broken("begins at an impossible element");
  view.offset = *offset;
  HOLDFAST_TRY(read_shape(arguments[2], arguments[3], view));
  if (arguments.size() > least) HOLDFAST_TRY(read_flags(arguments[least], view));
  return view;
}

Result<View> ArgumentReader::storage(PickleId persistent) const {
  View view;
  // A storage without a type has bytes.
  const bool untyped = !read_storage(persistent, std::nullopt, view).ok();
  if (untyped) HOLDFAST_TRY(read_storage(persistent, Dtype::kU8, view));
  auto shape = Shape::create(std::array{view.storage_bytes / bytes_of(view.dtype)});
  if (!shape.ok()) return broken("has a storage of an impossible size");
  view.shape = *std::move(shape);
  view.strides[0] = 1;
  return view;
}

// torch writes that a view is conjugated or negated, instead of changing its bytes.
Result<void> ArgumentReader::read_flags(PickleId id, View& view) const {
  const auto* flags = pickle_[id].as<Dict>();
  if (flags == nullptr && pickle_[id].as<Object::None>() == nullptr) {
    return broken("has flags that are no dict");
  }
  bool conjugated = false, negated = false;
  for (const auto& [key, value] : flags == nullptr ? Dict{}.items : flags->items) {
    const std::string name = HOLDFAST_TRY(text(key));
    const auto* set = pickle_[value].as<bool>();
    if (set == nullptr || (name != "conj" && name != "neg")) {
      return odd(fmt::format("has the flag {}, which is not known", name));
    }
    (name == "conj" ? conjugated : negated) = *set;
  }
  if (!conjugated && !negated) return {};
  std::optional<Bytes> mask = sign_mask(view.dtype, conjugated, negated);
  if (!mask) {
    return odd(
        fmt::format("is a conjugated or negated view of {}", name_of(view.dtype)));
  }
  view.mask = *std::move(mask);
  return {};
}

Result<Dtype> ArgumentReader::find_dtype(PickleId id) const {
  const auto* global = pickle_[id].as<Global>();
  const auto dtype = global == nullptr ? std::nullopt : dtype_of_global(global->name);
  if (dtype) return *dtype;
  return odd(fmt::format("has the dtype {}, which is not known",
                         global == nullptr ? "?" : global->name));
}

// A storage is ('storage', torch.FloatStorage, '0', 'cpu', 6). The last item is the
// number of elements. `dtype` is the dtype of the tensor; it is used if the storage
// itself has none. Before torch 1.6 there was one item more: None, or the part of the
// storage that is meant.
Result<void> ArgumentReader::read_storage(PickleId id, std::optional<Dtype> dtype,
                                          View& view) const {
  const auto* persistent = pickle_[id].as<Persistent>();
  if (persistent == nullptr) return broken("has no storage");
  const auto parts = HOLDFAST_TRY(tuple(persistent->id));
  if (parts.size() < 5 || parts.size() > 6 ||
      HOLDFAST_TRY(text(parts[0])) != "storage") {
    return broken("has a storage that is not torch's");
  }
  const auto* type = pickle_[parts[1]].as<Global>();
  if (type == nullptr) return broken("has a storage without a type");
  const auto stored = dtype_of_storage(type->name);
  const bool untyped = type->name == "torch.storage.UntypedStorage";
  if (stored.has_value() == untyped || (!stored && !dtype)) {
    return odd(fmt::format("is in a {}, which is not known", type->name));
  }
  view.dtype = dtype ? *dtype : *stored;
  view.key = HOLDFAST_TRY(text(parts[2]));
  const auto bytes = checked_mul(HOLDFAST_TRY(integer(parts[4])),
                                 stored ? bytes_of(*stored) : int64_t{1});
  if (!bytes || *bytes < 0) return broken("has a storage of an impossible size");
  view.storage_bytes = *bytes;
  if (parts.size() < 6 || pickle_[parts[5]].as<Object::None>() != nullptr) return {};
  const auto part = HOLDFAST_TRY(tuple(parts[5]));
  if (part.size() != 3) return broken("has a part of a storage that is not torch's");
  view.offset = HOLDFAST_TRY(integer(part[1]));
  return {};
}

Result<void> ArgumentReader::read_shape(PickleId sizes_id, PickleId strides_id,
                                        View& view) const {
  const auto sizes = HOLDFAST_TRY(integers(sizes_id));
  const auto strides = HOLDFAST_TRY(integers(strides_id));
  if (sizes.size() != strides.size()) {
    return broken(
        fmt::format("has {} sizes and {} strides", sizes.size(), strides.size()));
  }
  if (sizes.size() > kMaxRank) {
    return odd(fmt::format("has {} dimensions, limit {}", sizes.size(), kMaxRank));
  }
  auto shape = Shape::create(sizes);
  if (!shape.ok()) {
    return shape.error().as(ErrorCode::kCorrupt).within(path_).within(where_);
  }
  view.shape = *std::move(shape);
  std::ranges::copy(strides, view.strides.begin());
  return {};
}

Error ArgumentReader::refuse(std::string_view function) const {
  return odd(fmt::format("is made by \"{}\", which is not known here", function));
}

}  // namespace holdfast::torch_zip

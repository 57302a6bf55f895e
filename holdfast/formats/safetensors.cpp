#include "holdfast/formats/safetensors.h"

#include "holdfast/contents/file_edit.h"
#include "holdfast/contents/side_metadata.h"
#include "holdfast/formats/safetensors_internal.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

using Metadata = std::map<std::string, std::string>;

// Removes one of Holdfast's own members from __metadata__ and decodes it. Returns None
// if the member is not there.
Result<Object> take_object(Metadata& metadata, const char* key,
                           const std::string& where) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return Object();
  const auto place = where + ": __metadata__." + key;
  Object object = HOLDFAST_TRY(decode_object(bytes_of(found->second), place));
  metadata.erase(found);
  return object;
}

// One of Holdfast's members of __metadata__: a dict that maps names of tensors to notes
// about them.
class Notes {
 public:
  static Result<Notes> remove_from(SafetensorsHeader& header, const char* key,
                                   const std::string& where) {
    Notes notes;
    notes.where_ = where + ": __metadata__." + key;
    notes.object_ = HOLDFAST_TRY(take_object(header.metadata, key, where));
    if (!notes.object_.none() && notes.object_.as<Object::Dict>() == nullptr) {
      return corrupt("{}: is not a dict; expected one", notes.where_);
    }
    if (notes.object_.none()) return notes;
    for (Tensor& tensor : header.tensors) notes.tensors_[tensor.name] = &tensor;
    return notes;
  }

  using Apply = Result<void>(Tensor& tensor, const Object& value,
                             const std::string& where);
  Result<void> for_each(Apply* apply) const {
    const auto* dict = object_.as<Object::Dict>();
    if (dict == nullptr) return {};
    for (const auto& [key, value] : dict->items) {
      const auto* name = key.as<std::string>();
      const auto found =
          name == nullptr ? tensors_.end() : tensors_.find(std::string_view(*name));
      if (found == tensors_.end()) {
        return corrupt("{}: has a key that is not the name of a tensor", where_);
      }
      HOLDFAST_TRY(apply(*found->second, value, where_ + ": " + shown(*name)));
    }
    return {};
  }

 private:
  std::string where_;
  Object object_;
  std::map<std::string_view, Tensor*> tensors_;
};

Result<void> apply_aliases(Tensor& tensor, const Object& value,
                           const std::string& where) {
  const auto* names = value.as<Object::List>();
  if (names == nullptr)
    return corrupt("{}: is not a list of names; expected one", where);
  for (const Object& item : names->items) {
    const auto* name = item.as<std::string>();
    if (name == nullptr)
      return corrupt("{}: is not a list of names; expected one", where);
    tensor.aliases.push_back(*name);
  }
  return {};
}

Result<void> apply_dtype(Tensor& tensor, const Object& value,
                         const std::string& where) {
  const auto* name = value.as<std::string>();
  if (name == nullptr || *name != name_of(Dtype::kC128)) {
    return unsupported("{}: is not such a dtype; expected {}", where,
                       name_of(Dtype::kC128));
  }
  const int rank = tensor.shape.rank();
  if (tensor.dtype != Dtype::kF64 || rank == 0 || tensor.shape[rank - 1] != 2) {
    return corrupt("{}: stored as {} {}; expected F64 with a last dimension of 2",
                   where, name_of(tensor.dtype), to_string(tensor.shape));
  }
  tensor.dtype = Dtype::kC128;
  tensor.shape = HOLDFAST_TRY(
      Shape::create(tensor.shape.sizes().first(static_cast<size_t>(rank - 1))));
  return {};
}

// Applies to the tensors what writing has put into __metadata__, and returns the
// objects that were stored there.
Result<Object> apply_own_metadata(SafetensorsHeader& header, const std::string& where) {
  const Notes dtypes = HOLDFAST_TRY(Notes::remove_from(header, kDtypesKey, where));
  HOLDFAST_TRY(dtypes.for_each(apply_dtype));
  const Notes aliases = HOLDFAST_TRY(Notes::remove_from(header, kTiesKey, where));
  HOLDFAST_TRY(aliases.for_each(apply_aliases));
  return take_object(header.metadata, kObjectsKey, where);
}

std::string holder_name(const Source& source, size_t index) {
  return source.name().empty() ? fmt::format("file {}", index) : source.name();
}

Result<Collection> collection_of(std::span<const std::shared_ptr<const Source>> sources,
                                 std::span<SafetensorsHeader> headers) {
  std::vector<Tensor> tensors;
  std::vector<Holder> holders;
  std::vector<std::pair<HolderId, int64_t>> places;
  for (HolderId h = 0; h < headers.size(); ++h) {
    holders.push_back({.name = holder_name(*sources[h], h), .kind = HolderKind::kFile});
    for (size_t i = 0; i < headers[h].tensors.size(); ++i) {
      tensors.push_back(std::move(headers[h].tensors[i]));
      places.emplace_back(h, headers[h].offsets[i]);
    }
  }
  LayoutBuilder builder(tensors, std::move(holders));
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), places[t].first, places[t].second);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(std::move(tensors), std::move(layout));
}

}  // namespace

Result<Contents> contents_of(std::vector<std::shared_ptr<const Source>> sources,
                             std::vector<SafetensorsHeader> headers) {
  Object objects;
  Metadata metadata;
  for (size_t i = 0; i < headers.size(); ++i) {
    Object found = HOLDFAST_TRY(apply_own_metadata(headers[i], sources[i]->name()));
    if (!found.none() && !objects.none()) {
      return corrupt("{}: has objects, but an earlier file has them too",
                     sources[i]->name());
    }
    if (!found.none()) objects = std::move(found);
    metadata.merge(headers[i].metadata);
  }
  const std::string where = sources.empty() ? "safetensors" : sources.front()->name();
  Collection collection =
      HOLDFAST_TRY(as_corrupt(collection_of(sources, headers).within(where)));
  HOLDFAST_TRY(
      as_corrupt(check_tensor_names(objects, collection.tensors()).within(where)));
  return Contents{.collection = std::move(collection),
                  .sources = std::move(sources),
                  .objects = std::move(objects),
                  .metadata = std::move(metadata)};
}

Result<Contents> open_safetensors(std::shared_ptr<const Source> source) {
  std::vector<SafetensorsHeader> headers;
  headers.push_back(HOLDFAST_TRY(read_safetensors_header(*source)));
  return contents_of({std::move(source)}, std::move(headers));
}

Result<Patch> plan_safetensors_patch(Env& env, const Path& path,
                                     std::span<const Flip> flips, Checksums) {
  const Contents contents =
      HOLDFAST_TRY(open_safetensors(HOLDFAST_TRY(FileSource::open(env, path))));
  return plan_plain_patch(env, path, contents, flips);
}

}  // namespace holdfast

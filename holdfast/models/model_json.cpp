#include "holdfast/models/model_json.h"

#include "holdfast/models/hf_fields.h"
#include "holdfast/models/named_model.h"
#include "holdfast/state/collection_json.h"

namespace holdfast {
namespace {

constexpr int64_t kModelVersion = 1;

Result<NamedTensor> read_named_tensor(const Json& json, std::string where) {
  Fields fields = HOLDFAST_TRY(Fields::of(json, std::move(where)));
  NamedTensor each{.tensor = HOLDFAST_TRY(tensor_from_fields(fields))};
  each.transposed = HOLDFAST_TRY(flag_or(fields, "transposed", false));
  HOLDFAST_TRY(fields.done());
  const Role role = each.tensor.role;
  if (role != Role::kParameter && role != Role::kBuffer && role != Role::kCounter) {
    return invalid("{}.role: {}; expected parameter, buffer or counter", fields.where(),
                   name_of(role));
  }
  return each;
}

Result<HeadCounts> read_head_counts(Fields& fields) {
  HeadCounts heads{.heads = HOLDFAST_TRY(size_or(fields, "heads", 0, kMaxHeads))};
  heads.kv_heads = HOLDFAST_TRY(size_or(fields, "kv_heads", heads.heads, kMaxHeads));
  if (heads.heads == 0) return HeadCounts{};
  HOLDFAST_TRY(
      check_multiple(fields, "heads", heads.heads, "kv_heads", heads.kv_heads));
  return heads;
}

}  // namespace

bool is_model_json(const Json& json) {
  return json.is_object() && json.contains("holdfast");
}

Result<Model> model_from_json(const Json& json, std::string_view where) {
  Fields fields = HOLDFAST_TRY(Fields::of(json, std::string(where)));
  const std::string kind = HOLDFAST_TRY(fields.text("holdfast"));
  if (kind != "model") {
    return invalid("{}: holds a \"{}\"; expected a \"model\"", where, kind);
  }
  const int64_t version = HOLDFAST_TRY(fields.integer("version"));
  if (version != kModelVersion) {
    return unsupported("{}: version {}; expected {}", where, version, kModelVersion);
  }
  std::string name = HOLDFAST_TRY(fields.text("name"));
  const HeadCounts heads = HOLDFAST_TRY(read_head_counts(fields));
  const Json* list = HOLDFAST_TRY(fields.array("tensors"));
  HOLDFAST_TRY(fields.done());
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < list->size(); ++i) {
    tensors.push_back(HOLDFAST_TRY(
        read_named_tensor((*list)[i], fmt::format("{}: tensors[{}]", where, i))));
  }
  return model_of_tensors(std::move(name), std::move(tensors), heads);
}

}  // namespace holdfast

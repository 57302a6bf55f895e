#include "holdfast/models/model_json.h"

#include "holdfast/models/hf_fields.h"
#include "holdfast/models/named_model.h"
#include "holdfast/state/tensor_fields.h"

namespace holdfast {

void fields(Is<NamedTensor> auto& self, auto&& field) {
  fields(self.tensor, field);
  field.optional("transposed", self.transposed);
  field.check([role = self.tensor.role]() -> Result<void> {
    if (role == Role::kParameter || role == Role::kBuffer || role == Role::kCounter) {
      return {};
    }
    return invalid("role: {}; expected parameter, buffer or counter", name_of(role));
  });
}

namespace {

struct ModelDocument {
  std::string name{};
  HeadCounts heads{};
  std::vector<NamedTensor> tensors{};

  static void fields(auto& self, auto&& field) {
    field.kind("model");
    field.version(1);
    field("name", self.name);
    field.optional("heads", self.heads.heads, 1, kMaxHeads);
    self.heads.kv_heads = self.heads.heads;
    field.optional("kv_heads", self.heads.kv_heads, 1, kMaxHeads);
    field("tensors", self.tensors);
  }
};

}  // namespace

bool is_model_json(const JsonPlace& at) { return at.find("holdfast").has_value(); }

Result<Model> model_from_json(const JsonPlace& at) {
  ModelDocument document;
  HOLDFAST_TRY(read_json(at, document));
  HeadCounts& heads = document.heads;
  if (heads.heads == 0) heads = {};
  if (heads.heads % std::max<int64_t>(heads.kv_heads, 1) != 0) {
    return invalid("{}: heads is {}; expected a multiple of kv_heads = {}", at.text(),
                   heads.heads, heads.kv_heads);
  }
  return model_of_tensors(std::move(document.name), std::move(document.tensors), heads);
}

}  // namespace holdfast

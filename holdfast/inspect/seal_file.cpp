#include "holdfast/inspect/seal_file.h"

#include "holdfast/base/xxh3.h"
#include "holdfast/state/tensor_fields.h"
#include "holdfast/base/json_digest.h"

namespace holdfast {

void fields(Is<SealedTensor> auto& self, auto&& field) {
  field("name", self.name);
  field("dtype", self.dtype);
  field("shape", self.shape);
  const auto bytes = static_cast<uint64_t>(self.shape.elements() * bytes_of(self.dtype));
  field.text(
      "seal", self.seal,
      [](const Seal& seal) { return Digest128{seal.lanes[0], seal.lanes[1]}.hex(); },
      [&](std::string_view digits) -> Result<Seal> {
        const Digest128 lanes = HOLDFAST_TRY(Digest128::from_hex(digits));
        return Seal{.lanes = {lanes.high, lanes.low}, .bytes = bytes};
      });
}
template <>
inline constexpr bool kRow<SealedTensor> = true;

namespace {

struct SealFile {
  std::vector<SealedTensor> tensors{};

  static void fields(auto& self, auto&& field) {
    field.kind("seals");
    field.version(1);
    field.line();
    field("tensors", self.tensors);
  }
};

}  // namespace

Path seals_path(const Path& path) {
  Path named = path.has_filename() ? path : path.parent_path();
  named += ".seals.json";
  return named;
}

Bytes encode_seals(std::span<const SealedTensor> tensors) {
  return encode_with_digest(SealFile{{tensors.begin(), tensors.end()}});
}

Result<std::vector<SealedTensor>> decode_seals(ByteView bytes,
                                               const std::string& where) {
  return HOLDFAST_TRY(decode_with_digest<SealFile>(bytes, where)).tensors;
}

Result<std::vector<SealedTensor>> read_seals(Env& env, const Path& path) {
  const Path file = seals_path(path);
  return decode_seals(HOLDFAST_TRY(env.read_file(file)), file.native());
}

}  // namespace holdfast

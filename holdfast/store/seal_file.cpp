#include "holdfast/store/seal_file.h"

#include "holdfast/base/json.h"
#include "holdfast/base/json_append.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/json_digest_internal.h"

namespace holdfast {
namespace {

constexpr std::string_view kSealsKind = "seals";
constexpr int64_t kSealsVersion = 1;

void put_sealed(std::string& out, const SealedTensor& tensor) {
  out += "\n[";
  put_text(out, tensor.name);
  put(out, ",\"{}\",[", name_of(tensor.dtype));
  for (int k = 0; k < tensor.shape.rank(); ++k) {
    if (k > 0) out += ',';
    append_json_integer(out, tensor.shape[k]);
  }
  put(out, "],\"{}{}\"]", hex64(tensor.seal.lanes[0]), hex64(tensor.seal.lanes[1]));
}

Result<Shape> read_shape(const Json& json, const std::string& where) {
  if (!json.is_array()) return corrupt("{}: expected a list of sizes", where);
  std::vector<int64_t> sizes;
  for (const Json& size : json) {
    sizes.push_back(HOLDFAST_TRY(json_integer(size, where)));
  }
  return Shape::create(sizes);
}

Result<Seal> read_seal(const Json& json, uint64_t bytes, const std::string& where) {
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  const std::string_view digits = text;
  if (digits.size() == 32) {
    const auto first = parse_hex64(digits.substr(0, 16));
    const auto second = parse_hex64(digits.substr(16));
    if (first && second) return Seal{.lanes = {*first, *second}, .bytes = bytes};
  }
  return corrupt("{}: the seal is \"{}\"; expected 32 hexadecimal digits", where, text);
}

Result<SealedTensor> read_sealed(const Json& json, const std::string& where) {
  if (!json.is_array() || json.size() != 4 || !json[0].is_string() ||
      !json[1].is_string()) {
    return corrupt("{}: expected a name, a dtype, a shape and a seal", where);
  }
  SealedTensor tensor{.name = json[0].get<std::string>()};
  tensor.dtype = HOLDFAST_TRY(parse_dtype(json[1].get<std::string>()));
  tensor.shape = HOLDFAST_TRY(read_shape(json[2], where));
  const auto bytes =
      static_cast<uint64_t>(tensor.shape.elements() * bytes_of(tensor.dtype));
  tensor.seal = HOLDFAST_TRY(read_seal(json[3], bytes, where));
  return tensor;
}

Result<std::vector<SealedTensor>> read_members(const Json& json,
                                               const std::string& where) {
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  const std::string kind = HOLDFAST_TRY(fields.text("holdfast"));
  if (kind != kSealsKind) {
    return corrupt("{}: is a \"{}\"; expected \"{}\"", where, kind, kSealsKind);
  }
  const int64_t version = HOLDFAST_TRY(fields.integer("version"));
  if (version != kSealsVersion) {
    return unsupported("{}: version {}; expected {}", where, version, kSealsVersion);
  }
  const Json& list = *HOLDFAST_TRY(fields.array("tensors"));
  HOLDFAST_TRY(fields.done());
  std::vector<SealedTensor> tensors;
  for (size_t i = 0; i < list.size(); ++i) {
    tensors.push_back(
        HOLDFAST_TRY(read_sealed(list[i], fmt::format("{}: tensors[{}]", where, i))));
  }
  return tensors;
}

}  // namespace

Path seals_path(const Path& path) {
  Path named = path.has_filename() ? path : path.parent_path();
  named += ".seals.json";
  return named;
}

Bytes encode_seals(std::span<const SealedTensor> tensors) {
  std::string out;
  put(out, "{{\"holdfast\":\"{}\",\"version\":{},\n\"tensors\":[", kSealsKind,
      kSealsVersion);
  for (const SealedTensor& tensor : tensors) {
    if (&tensor != tensors.data()) out += ',';
    put_sealed(out, tensor);
  }
  out += ']';
  put_digest(out);
  return copy_of(bytes_of(out));
}

Result<std::vector<SealedTensor>> decode_seals(ByteView bytes,
                                               const std::string& where) {
  const std::string_view members = HOLDFAST_TRY(check_digest(text_of(bytes), where));
  const Result<Json> json = parse_json(std::string(members) + "}", where);
  if (!json.ok()) return json.error().as(ErrorCode::kCorrupt);
  Result<std::vector<SealedTensor>> tensors = read_members(*json, where);
  if (tensors.ok() || tensors.error().code() == ErrorCode::kUnsupported) return tensors;
  return tensors.error().as(ErrorCode::kCorrupt);
}

Result<std::vector<SealedTensor>> read_seals(Env& env, const Path& path) {
  const Path file = seals_path(path);
  return decode_seals(HOLDFAST_TRY(env.read_file(file)), file.native());
}

}  // namespace holdfast

// What reading and writing one safetensors file share with folders of them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/source_sink.h"
#include "holdfast/formats/contents.h"

namespace holdfast {

inline constexpr const char* kObjectsKey = "holdfast.objects";
inline constexpr const char* kTiesKey = "holdfast.ties";
inline constexpr const char* kDtypesKey = "holdfast.dtypes";

// A header, checked against the size of its file.
struct SafetensorsHeader {
  std::vector<Tensor> tensors;   // in the order of their bytes
  std::vector<int64_t> offsets;  // of each in the file
  std::map<std::string, std::string> metadata;
};

Result<SafetensorsHeader> read_safetensors_header(const Source& source);

// The weight_map of a folder's index: name of a tensor to name of its file. kCorrupt for
// what is none and for names of files that are more than a plain name.
Result<std::map<std::string, std::string>> decode_weight_map(std::string_view json,
                                                             std::string_view where);

// Everything that the headers and their metadata say, one source a header. Objects may
// name tensors of any of them.
Result<Contents> contents_of(std::vector<std::shared_ptr<const Source>> sources,
                             std::vector<SafetensorsHeader> headers);

// One file with these tensors, ties and C128 noted; `objects` too unless they are None.
Result<void> write_tensors(Sink& sink, const Contents& contents,
                           std::span<const TensorId> tensors, const Object& objects);

// All tensors in the order in which writers store them.
std::vector<TensorId> storage_order(const Collection& collection);

// kInvalid for objects that name a tensor which the collection does not have.
Result<void> check_tensor_names(const Object& objects, const Collection& collection);

// A name from outside as messages show it: quoted, escaped and short.
std::string shown(std::string_view name);

// The same result; an error becomes kCorrupt, where the request was sound and the bytes
// are not.
template <typename T>
Result<T> as_corrupt(Result<T> result) {
  if (result.ok()) return result;
  return result.error().as(ErrorCode::kCorrupt);
}

}  // namespace holdfast

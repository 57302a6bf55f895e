// What the code for one safetensors file shares with the code for folders of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/json_text.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/contents/contents.h"

namespace holdfast {

// A file begins with the length of its header, a number of so many bytes.
inline constexpr int64_t kHeaderLengthBytes = 8;
inline constexpr const char* kObjectsKey = "holdfast.objects";
inline constexpr const char* kTiesKey = "holdfast.ties";
inline constexpr const char* kDtypesKey = "holdfast.dtypes";

// A header that was checked against the size of its file.
struct SafetensorsHeader {
  std::vector<Tensor> tensors;  // in the order of their bytes
  // The offset of each tensor in the file.
  std::vector<int64_t> offsets;
  std::map<std::string, std::string> metadata;
};

Result<SafetensorsHeader> read_safetensors_header(const Source& source);

// Whether the name is a plain file name, so that an index cannot lead out of its folder.
bool is_plain_file_name(std::string_view name);

// Decodes the weight_map in the index of a folder: calls `add` with each name and the file
// that has it. With `lists` a name may have several files. Fails with kCorrupt if there is
// no such map, or if the name of a file is not a plain name.
Result<void> read_weight_map(
    std::string_view json, std::string_view where, bool lists,
    const std::function<void(const std::string& name, const std::string& file)>& add);
// The same for names of tensors, each of which has one file.
Result<std::map<std::string, std::string>> decode_weight_map(std::string_view json,
                                                             std::string_view where);

// Makes the contents of all headers and their metadata. There is one source for each
// header. Objects may refer to tensors of any of the files.
Result<Contents> contents_of(std::vector<std::shared_ptr<const Source>> sources,
                             std::vector<SafetensorsHeader> headers);

// Writes one file with these tensors. Notes aliases and C128 in its metadata, and
// `objects` too unless they are None.
Result<void> write_tensors(Sink& sink, const Contents& contents,
                           std::span<const TensorId> tensors, const Object& objects);

// All tensors in the order in which they are written.
std::vector<TensorId> storage_order(const Collection& collection);

// Makes an error kCorrupt. For checks that blame the caller, while here the bytes of a
// file are to blame.
template <typename T>
Result<T> as_corrupt(Result<T> result) {
  if (result.ok()) return result;
  return result.error().as(ErrorCode::kCorrupt);
}

}  // namespace holdfast

// Parses the JSON of safetensors: headers, and the index of a folder.
//
// A header may have 100 MB and comes from an unknown source. It is parsed as a sequence
// of events and never as a tree of values. So parsing ends at the first event that does
// not fit, and memory use stays in proportion to the number of tensors.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "holdfast/base/json.h"
#include "holdfast/base/json_text.h"
#include "holdfast/formats/safetensors.h"
#include "holdfast/formats/safetensors_internal.h"

namespace holdfast {
namespace {

struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;
};

class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::string_view where) : where_(where) {}

  bool null() override {
    // The reference library takes null for no metadata.
    if (at_ == At::kRoot && name_ == kMetadata) return true;
    return leaf("null");
  }
  bool boolean(bool) override { return leaf("a truth value"); }
  bool number_integer(number_integer_t) override { return leaf("a negative number"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (at_ != At::kList) return leaf("a number");
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return fail(fmt::format("{}.{} has {}; expected at most 2^63 - 1", shown(name_),
                              field_, value));
    }
    if (list().size() > kMaxNumbers) return fail_rank();
    list().push_back(static_cast<int64_t>(value));
    return true;
  }
  bool number_float(number_float_t, const string_t&) override {
    return leaf("a float");
  }
  bool string(string_t& value) override {
    if (at_ == At::kMetadata) {
      metadata_[name_in_metadata_] = std::move(value);
      return true;
    }
    if (at_ != At::kInfo || field_ != "dtype") return leaf("a string");
    entry_.dtype = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return leaf("binary"); }

  bool start_object(std::size_t) override {
    if (at_ == At::kStart) return go(At::kRoot);
    if (at_ == At::kRoot && name_ == kMetadata) return go(At::kMetadata);
    if (at_ == At::kRoot) {
      entry_ = {};
      return go(At::kInfo);
    }
    return skip();
  }
  bool start_array(std::size_t) override {
    if (at_ == At::kInfo && (field_ == "shape" || field_ == "data_offsets")) {
      (field_ == "shape" ? entry_.shape : entry_.offsets).emplace();
      return go(At::kList);
    }
    return skip();
  }
  bool key(string_t& key) override {
    if (at_ == At::kRoot) return start_name(std::move(key));
    if (at_ == At::kInfo) return start_field(std::move(key));
    if (at_ == At::kMetadata) {
      if (metadata_.contains(key))
        return fail("a key of __metadata__ is there twice; expected it once");
      name_in_metadata_ = std::move(key);
    }
    return true;
  }
  bool end_object() override {
    if (at_ == At::kSkip) return unskip();
    if (at_ == At::kRoot) return go(At::kEnd);
    if (at_ == At::kInfo) {
      if (!entry_.dtype || !entry_.shape || !entry_.offsets) {
        return fail(fmt::format("{} lacks dtype, shape or data_offsets", shown(name_)));
      }
      entry_.name = name_;
      entries_.push_back(std::move(entry_));
    }
    return go(At::kRoot);
  }
  bool end_array() override {
    if (at_ == At::kSkip) return unskip();
    return go(At::kInfo);
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("header is not JSON at byte {}", position));
  }

  std::optional<Error> error() { return std::move(error_); }
  std::vector<Entry>& entries() { return entries_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

 private:
  // The part of the header that the parser is in. Everything below an unknown field is
  // skipped, as in the reference library.
  enum class At { kStart, kRoot, kMetadata, kInfo, kList, kSkip, kEnd };
  static constexpr const char* kMetadata = "__metadata__";
  // The limit for the numbers in one list. It is higher than the limit for dimensions,
  // which is checked later, where the error can name the tensor.
  static constexpr size_t kMaxNumbers = 64;

  bool known(const std::string& field) const {
    return field == "dtype" || field == "shape" || field == "data_offsets";
  }

  bool start_name(std::string name) {
    name_ = std::move(name);
    const bool first = names_.insert(name_).second;
    return first ||
           fail(fmt::format("{} is there twice; expected it once", shown(name_)));
  }

  bool start_field(std::string field) {
    field_ = std::move(field);
    const bool repeated = (field_ == "dtype" && entry_.dtype) ||
                          (field_ == "shape" && entry_.shape) ||
                          (field_ == "data_offsets" && entry_.offsets);
    return !repeated || fail(fmt::format("{} has {} twice; expected it once",
                                         shown(name_), shown(field_)));
  }

  std::vector<int64_t>& list() {
    return field_ == "shape" ? *entry_.shape : *entry_.offsets;
  }

  // Handles a value that is neither a list nor an object where it does not fit.
  bool leaf(const char* what) {
    if (at_ == At::kSkip || (at_ == At::kInfo && !known(field_))) return true;
    return fail(fmt::format("{}{}; expected {}", what, in_name(), expected()));
  }

  // Handles the start of a list or object that does not fit: skips it if it belongs to
  // an unknown field.
  bool skip() {
    if (at_ == At::kSkip || (at_ == At::kInfo && !known(field_))) {
      at_ = At::kSkip;
      if (++skipped_ <= kMaxJsonDepth) return true;
      return fail(fmt::format("header is more than {} levels deep", kMaxJsonDepth));
    }
    return fail(fmt::format("a list or object{}; expected {}", in_name(), expected()));
  }

  bool unskip() {
    if (--skipped_ == 0) at_ = At::kInfo;
    return true;
  }

  const char* expected() const {
    switch (at_) {
      case At::kMetadata: return "a string";
      case At::kList: return "a size";
      case At::kInfo: return field_ == "dtype" ? "a dtype" : "a list";
      default: return "an object";
    }
  }
  std::string in_name() const { return at_ == At::kStart ? "" : " in " + shown(name_); }

  bool fail_rank() {
    return fail(fmt::format("{}.{} has more than {} numbers", shown(name_), field_,
                            kMaxNumbers));
  }

  bool go(At at) {
    at_ = at;
    return true;
  }

  bool fail(const std::string& what) {
    if (!error_) error_ = corrupt("{}: {}", where_, what);
    return false;
  }

  std::string_view where_;
  At at_ = At::kStart;
  int skipped_ = 0;
  std::string name_, field_, name_in_metadata_;
  Entry entry_;
  std::vector<Entry> entries_;
  std::unordered_set<std::string> names_;
  std::map<std::string, std::string> metadata_;
  std::optional<Error> error_;
};

Result<std::string> read_header_text(const Source& source) {
  if (source.size() < kHeaderLengthBytes) {
    return corrupt("{}: {} bytes; expected at least {}", source.name(), source.size(),
                   kHeaderLengthBytes);
  }
  const Bytes raw = HOLDFAST_TRY(source.read_bytes(0, kHeaderLengthBytes));
  const auto length = load_little_endian<uint64_t>(raw);
  if (length > uint64_t{kMaxSafetensorsHeader}) {
    return corrupt("{}: header is {} bytes, limit {}", source.name(), length,
                   kMaxSafetensorsHeader);
  }
  const auto bytes = static_cast<int64_t>(length);
  if (bytes > source.size() - kHeaderLengthBytes) {
    return corrupt("{}: header is {} bytes, but only {} follow", source.name(), bytes,
                   source.size() - kHeaderLengthBytes);
  }
  const Bytes text = HOLDFAST_TRY(source.read_bytes(kHeaderLengthBytes, bytes));
  const size_t nul = text_of(text).find('\0');
  if (nul != std::string_view::npos) {
    return corrupt("{}: header is not JSON at byte {}", source.name(), nul + 1);
  }
  return std::string(text_of(text));
}

Result<Dtype> find_dtype(const std::string& name) {
  for (const DtypeInfo& known : all_dtypes()) {
    // In files the names of dtypes are exact. C128 is used only in Holdfast's own
    // metadata.
    if (known.name == name && known.dtype != Dtype::kC128) return known.dtype;
  }
  return unsupported("dtype {} is not known", shown(name));
}

// Makes the tensor of an entry. The caller adds the name of the tensor to errors.
Result<Tensor> tensor_of(Entry& entry) {
  Tensor tensor;
  tensor.dtype = HOLDFAST_TRY(find_dtype(*entry.dtype));
  if (entry.shape->size() > kMaxRank) {
    return unsupported("{} dimensions; expected at most {}", entry.shape->size(),
                       kMaxRank);
  }
  tensor.shape = HOLDFAST_TRY(as_corrupt(Shape::create(*entry.shape)));
  const auto& offsets = *entry.offsets;
  if (offsets.size() != 2 || offsets[1] < offsets[0]) {
    return corrupt("data_offsets [{}]; expected a first and a last",
                   fmt::join(offsets, ", "));
  }
  if (offsets[1] - offsets[0] != tensor.bytes()) {
    return corrupt("{} bytes of data; expected {} for {} {}", offsets[1] - offsets[0],
                   tensor.bytes(), name_of(tensor.dtype), to_string(tensor.shape));
  }
  if (entry.name.empty()) return unsupported("a tensor has no name");
  tensor.name = std::move(entry.name);
  return tensor;
}

// Sorts the entries by their offsets and checks that each begins where the one before
// it ends.
Result<SafetensorsHeader> check_entries(std::vector<Entry>& entries, int64_t start,
                                        int64_t file_bytes) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return *a.offsets < *b.offsets;
  });
  SafetensorsHeader header;
  int64_t next = 0;
  for (Entry& entry : entries) {
    auto made = tensor_of(entry);
    if (!made.ok()) return made.error().within(shown(entry.name));
    Tensor tensor = *std::move(made);
    if (entry.offsets->front() != next) {
      return corrupt(
          "{}: data begins at {}; expected {}, because tensors leave no holes and do "
          "not overlap",
          shown(tensor.name), entry.offsets->front(), next);
    }
    next = entry.offsets->back();
    if (next > file_bytes - start) {
      return corrupt("{}: data ends at {}, but there are only {}", shown(tensor.name),
                     next, file_bytes - start);
    }
    header.offsets.push_back(start + entry.offsets->front());
    header.tensors.push_back(std::move(tensor));
  }
  if (next != file_bytes - start) {
    return corrupt("{} bytes follow the last tensor; expected none",
                   file_bytes - start - next);
  }
  return header;
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

Result<SafetensorsHeader> read_safetensors_header(const Source& source) {
  const std::string text = HOLDFAST_TRY(read_header_text(source));
  HeaderReader reader(source.name());
  (void)Json::sax_parse(text.begin(), text.end(), &reader);  // errors are in reader
  if (auto error = reader.error()) return *std::move(error);
  SafetensorsHeader header =
      HOLDFAST_TRY(check_entries(reader.entries(),
                                 kHeaderLengthBytes + std::ssize(text), source.size())
                       .within(source.name()));
  header.metadata = std::move(reader.metadata());
  return header;
}

Result<void> read_weight_map(
    std::string_view json, std::string_view where, bool lists,
    const std::function<void(const std::string& name, const std::string& file)>& add) {
  const Json root = HOLDFAST_TRY(as_corrupt(parse_json(json, where)));
  if (!root.is_object() || !root.contains("weight_map") ||
      !root["weight_map"].is_object()) {
    return corrupt("{}: has no weight_map", where);
  }
  for (const auto& [name, value] : root["weight_map"].items()) {
    for (const Json& file : lists && value.is_array() ? value : Json::array({value})) {
      if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
        return corrupt("{}: {} is in {}; expected the plain name of a file", where,
                       shown(name), shown(file.dump()));
      }
      add(name, file.get_ref<const std::string&>());
    }
  }
  return {};
}

Result<std::map<std::string, std::string>> decode_weight_map(std::string_view json,
                                                             std::string_view where) {
  std::map<std::string, std::string> files;
  HOLDFAST_TRY(read_weight_map(
      json, where, false,
      [&](const std::string& name, const std::string& file) { files[name] = file; }));
  return files;
}

}  // namespace holdfast

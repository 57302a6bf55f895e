#include "holdfast/campaign/trial_record.h"

#include "holdfast/base/json.h"
#include "holdfast/env/file.h"

namespace holdfast {
namespace {

constexpr int64_t kMostRecordBytes = int64_t{8} << 30;

std::string record_hex(std::byte byte) { return to_hex(ByteView(&byte, 1)); }

OrderedJson recorded_flip_json(const RecordedFlip& recorded) {
  const PlannedFlip& flip = recorded.flip;
  return {{"tensor", flip.tensor},
          {"role", name_of(recorded.role)},
          {"role_guessed", recorded.guessed},
          {"layer", recorded.layer},
          {"element", flip.element},
          {"dtype", name_of(flip.dtype)},
          {"bits", set_bits(flip.mask())},
          {"mask", bits_text(flip.dtype, flip.mask())},
          {"before", bits_text(flip.dtype, flip.before)},
          {"after", bits_text(flip.dtype, flip.after)}};
}

OrderedJson recorded_byte_json(const PlannedByte& byte) {
  return {{"file", byte.file},
          {"offset", byte.offset},
          {"mask", record_hex(byte.before ^ byte.after)},
          {"before", record_hex(byte.before)},
          {"after", record_hex(byte.after)}};
}

void put_optional(OrderedJson& json, const char* name, std::optional<double> number) {
  json[name] = number ? number_to_json(*number) : OrderedJson(nullptr);
}

// The text of "before" or "after". Campaigns of earlier versions called them "old" and
// "new".
Result<std::string> read_side(Fields& fields, const char* key, const char* earlier) {
  return fields.text(fields.has(earlier) ? earlier : key);
}

Result<RecordedFlip> read_recorded_flip(const Json& json, const std::string& where) {
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  RecordedFlip recorded;
  PlannedFlip& flip = recorded.flip;
  flip.tensor = HOLDFAST_TRY(fields.text("tensor"));
  recorded.role = HOLDFAST_TRY(parse_role(HOLDFAST_TRY(fields.text("role"))));
  if (fields.has("role_guessed")) {
    recorded.guessed = HOLDFAST_TRY(fields.boolean("role_guessed"));
  }
  recorded.layer = HOLDFAST_TRY(fields.text("layer"));
  flip.element = HOLDFAST_TRY(fields.integer("element"));
  flip.dtype = HOLDFAST_TRY(parse_dtype(HOLDFAST_TRY(fields.text("dtype"))));
  flip.before = HOLDFAST_TRY(
      parse_bits(flip.dtype, HOLDFAST_TRY(read_side(fields, "before", "old"))));
  flip.after = HOLDFAST_TRY(
      parse_bits(flip.dtype, HOLDFAST_TRY(read_side(fields, "after", "new"))));
  return recorded;
}

Result<std::byte> read_recorded_byte(Fields& fields, const char* key,
                                     const char* earlier) {
  const Bytes bytes =
      HOLDFAST_TRY(from_hex(HOLDFAST_TRY(read_side(fields, key, earlier))));
  if (bytes.size() == 1) return bytes.front();
  return invalid("{}.{}: has {} bytes; expected 1", fields.where(), key, bytes.size());
}

Result<PlannedByte> read_byte_change(const Json& json, const std::string& where) {
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  PlannedByte byte;
  byte.file = HOLDFAST_TRY(fields.text("file"));
  byte.offset = HOLDFAST_TRY(fields.integer("offset"));
  byte.before = HOLDFAST_TRY(read_recorded_byte(fields, "before", "old"));
  byte.after = HOLDFAST_TRY(read_recorded_byte(fields, "after", "new"));
  return byte;
}

Result<std::optional<double>> read_optional(const Json& json, Fields& fields,
                                            const char* name) {
  if (!fields.has(name) || json[name].is_null()) return std::optional<double>();
  const auto number = number_from_json(json[name]);
  if (!number) return invalid("{}.{}: is no number", fields.where(), name);
  return number;
}

Result<std::map<std::string, double>> read_distance(const Json& json,
                                                    const std::string& where) {
  if (!json.is_object()) return invalid("{}: is no object; expected tensors", where);
  std::map<std::string, double> distance;
  for (const auto& [name, value] : json.items()) {
    const auto number = number_from_json(value);
    if (!number) return invalid("{}.{}: is no number", where, name);
    distance[name] = *number;
  }
  return distance;
}

Result<TrialRecord> read_record(const Json& json, Fields& fields) {
  const std::string& where = fields.where();
  TrialRecord record;
  record.trial = HOLDFAST_TRY(fields.integer("trial"));
  record.seed = HOLDFAST_TRY(fields.integer("seed"));
  const Json& flips = *HOLDFAST_TRY(fields.array("flips"));
  for (const Json& flip : flips) {
    if (flip.is_object() && flip.contains("file")) {
      record.bytes.push_back(HOLDFAST_TRY(read_byte_change(flip, where + ": flips")));
    } else {
      record.flips.push_back(HOLDFAST_TRY(read_recorded_flip(flip, where + ": flips")));
    }
  }
  record.outcome = HOLDFAST_TRY(parse_outcome(HOLDFAST_TRY(fields.text("outcome"))));
  record.steps = HOLDFAST_TRY(fields.integer("steps"));
  record.final_loss = HOLDFAST_TRY(read_optional(json, fields, "final_loss"));
  record.final_accuracy = HOLDFAST_TRY(read_optional(json, fields, "final_accuracy"));
  record.first_accuracy = HOLDFAST_TRY(read_optional(json, fields, "first_accuracy"));
  record.seconds = HOLDFAST_TRY(read_optional(json, fields, "seconds")).value_or(0);
  record.why = HOLDFAST_TRY(fields.text("why"));
  if (fields.has("distance")) {
    record.distance =
        HOLDFAST_TRY(read_distance(json["distance"], where + ": distance"));
  }
  return record;
}

// The records of a text, and how many of its bytes they take: an incomplete last line is
// left out.
struct ParsedRecords {
  std::vector<TrialRecord> records{};
  int64_t bytes = 0;
};

Result<ParsedRecords> parse_records(std::string_view text, const std::string& where) {
  ParsedRecords parsed;
  for (size_t begin = 0, line = 1; begin < text.size(); ++line) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) break;
    parsed.records.push_back(HOLDFAST_TRY(decode_record(
        text.substr(begin, end - begin), fmt::format("{}: line {}", where, line))));
    begin = end + 1;
    parsed.bytes = static_cast<int64_t>(begin);
  }
  return parsed;
}

}  // namespace

std::string encode_record(const TrialRecord& record) {
  OrderedJson flips = OrderedJson::array();
  for (const RecordedFlip& flip : record.flips)
    flips.push_back(recorded_flip_json(flip));
  for (const PlannedByte& byte : record.bytes)
    flips.push_back(recorded_byte_json(byte));
  OrderedJson json{{"trial", record.trial},
                   {"seed", record.seed},
                   {"flips", std::move(flips)},
                   {"outcome", name_of(record.outcome)},
                   {"steps", record.steps}};
  put_optional(json, "final_loss", record.final_loss);
  put_optional(json, "final_accuracy", record.final_accuracy);
  put_optional(json, "first_accuracy", record.first_accuracy);
  json["seconds"] = record.seconds;
  json["why"] = record.why;
  if (record.distance) {
    OrderedJson distance = OrderedJson::object();
    for (const auto& [name, number] : *record.distance) {
      distance[name] = number_to_json(number);
    }
    json["distance"] = std::move(distance);
  }
  return json.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
}

Result<TrialRecord> decode_record(std::string_view line, const std::string& where) {
  const Json json = HOLDFAST_TRY(parse_json(line, where));
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  Result<TrialRecord> record = read_record(json, fields);
  if (record.ok()) return record;
  const Error why = record.error().as(ErrorCode::kInvalid);
  return why.message().starts_with(where) ? why : why.within(where);
}

Result<TrialFile> TrialFile::open(Env& env, const Path& path) {
  if (!env.info(path).ok()) HOLDFAST_TRY(env.write_file(path, {}));
  ParsedRecords parsed = HOLDFAST_TRY(parse_records(
      HOLDFAST_TRY(env.read_text(path, kMostRecordBytes)), path.native()));
  {
    const auto whole = HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kUpdate}));
    if (HOLDFAST_TRY(whole->size()) != parsed.bytes) {
      HOLDFAST_TRY(whole->truncate(parsed.bytes));
      HOLDFAST_TRY(whole->sync());
    }
  }
  HOLDFAST_TRY(env.sync_names(folder_of(path)));
  auto file = HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kAppend}));
  return TrialFile(std::move(file), std::move(parsed.records));
}

Result<void> TrialFile::add(const std::vector<TrialRecord>& records) {
  std::string text;
  for (const TrialRecord& record : records) text += encode_record(record) + "\n";
  HOLDFAST_TRY(file_->append(bytes_of(text)));
  return file_->sync_data();
}

Result<std::vector<TrialRecord>> read_records(Env& env, const Path& path) {
  const std::string text = HOLDFAST_TRY(env.read_text(path, kMostRecordBytes));
  return HOLDFAST_TRY(parse_records(text, path.native())).records;
}

}  // namespace holdfast

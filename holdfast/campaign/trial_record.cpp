#include "holdfast/campaign/trial_record.h"

#include "holdfast/base/json_fields.h"
#include "holdfast/env/file.h"
#include "holdfast/state/tensor_fields.h"

namespace holdfast {
namespace {

constexpr int64_t kMostRecordBytes = int64_t{8} << 30;

struct RecordedByte {
  PlannedByte change{};
};

// All that was changed is one list, first the elements.
struct Changes {
  std::vector<RecordedFlip> flips{};
  std::vector<PlannedByte> bytes{};
};

// The bits before and after. Campaigns of earlier versions called them "old" and "new".
void change_fields(auto& change, auto to_text, auto parse, auto& field) {
  field.derived("mask", to_text(change.mask()));
  field.text(field.has("old") ? "old" : "before", change.before, to_text, parse);
  field.text(field.has("new") ? "new" : "after", change.after, to_text, parse);
  field.allow_unknown();
}

}  // namespace

void put_json(JsonWriter& out, Outcome outcome) { out.put(name_of(outcome)); }
Result<void> read_json(const JsonPlace& at, Outcome& outcome) {
  return read_text(at, outcome, parse_outcome);
}

void fields(Is<RecordedFlip> auto& self, auto&& field) {
  auto& flip = self.flip;
  field("tensor", flip.tensor);
  field("role", self.role);
  field.maybe("role_guessed", self.guessed);
  field("layer", self.layer);
  field("element", flip.element);
  field("dtype", flip.dtype);
  field.derived("bits", set_bits(flip.mask()));
  change_fields(
      flip, [&](const ElementBits& bits) { return bits_text(flip.dtype, bits); },
      [&](std::string_view text) { return parse_bits(flip.dtype, text); }, field);
}

void fields(Is<RecordedByte> auto& self, auto&& field) {
  field("file", self.change.file);
  field("offset", self.change.offset);
  change_fields(
      self.change, [](std::byte byte) { return to_hex(byte); }, parse_byte, field);
}

namespace {

void put_json(JsonWriter& out, const Changes& changes) {
  out.open('[');
  for (const RecordedFlip& flip : changes.flips) {
    out.item();
    put_json(out, flip);
  }
  for (const PlannedByte& byte : changes.bytes) {
    out.item();
    put_json(out, RecordedByte{byte});
  }
  out.close();
}

Result<void> read_json(const JsonPlace& at, Changes& changes) {
  const size_t count = HOLDFAST_TRY(at.length());
  for (size_t i = 0; i < count; ++i) {
    const JsonPlace one = at.item(i);
    if (!one.find("file")) {
      HOLDFAST_TRY(read_json(one, changes.flips.emplace_back()));
      continue;
    }
    RecordedByte byte;
    HOLDFAST_TRY(read_json(one, byte));
    changes.bytes.push_back(std::move(byte.change));
  }
  return {};
}

}  // namespace

void fields(Is<TrialRecord> auto& self, auto&& field) {
  Changes changes{self.flips, self.bytes};
  field("trial", self.trial);
  field("seed", self.seed);
  field("flips", changes);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(self)>>) {
    self.flips = std::move(changes.flips);
    self.bytes = std::move(changes.bytes);
  }
  field("outcome", self.outcome);
  field("steps", self.steps);
  field.maybe("final_loss", self.final_loss);
  field.maybe("final_accuracy", self.final_accuracy);
  field.maybe("first_accuracy", self.first_accuracy);
  field.maybe("seconds", self.seconds);
  field("why", self.why);
  field.optional("distance", self.distance);
  field.allow_unknown();
}

namespace {

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
  return to_json_text(record, {.ascii = true});
}

Result<TrialRecord> decode_record(std::string_view line, const std::string& where) {
  Result<TrialRecord> record = from_json<TrialRecord>(line, where);
  // No later version may have written it: a campaign is continued by its own version.
  if (!record.ok()) return record.error().as(ErrorCode::kInvalid);
  return record;
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

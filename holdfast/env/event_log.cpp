#include "holdfast/env/event_log.h"

#include <cmath>

#include "holdfast/base/json_fields.h"

namespace holdfast {
namespace {

constexpr std::string_view kEventKey = "event";
constexpr std::string_view kWallKey = "wall_ns";
constexpr std::string_view kMonotonicKey = "mono_ns";
constexpr char kNonFiniteMark = '~';

bool is_reserved(std::string_view key) {
  return key == kEventKey || key == kWallKey || key == kMonotonicKey ||
         key.starts_with(kNonFiniteMark);
}

Result<EventValue> non_finite(const JsonPlace& at) {
  const auto name = at.as<std::string>();
  if (name == "nan" || name == "inf" || name == "-inf") return EventValue(*at.as<double>());
  return invalid("{}: not a number's name; expected \"nan\", \"inf\" or \"-inf\"",
                 at.text());
}

template <typename T>
Result<EventValue> read_as(const JsonPlace& at, auto... least) {
  T value{};
  HOLDFAST_TRY(at.read(value, least...));
  return EventValue(std::move(value));
}

Result<EventValue> value_of(const JsonPlace& at) {
  switch (at.kind()) {
    case JsonKind::kBoolean: return read_as<bool>(at);
    case JsonKind::kText: return read_as<std::string>(at);
    case JsonKind::kFraction: return read_as<double>(at);
    default: return read_as<int64_t>(at, kLeastInteger);
  }
}

// Adds the field unless it is one of those that every event has.
Result<void> add_field(EventRecord& record, const std::string& key,
                       const JsonPlace& at) {
  const bool marked = key.starts_with(kNonFiniteMark);
  if (!marked && is_reserved(key)) return {};
  const std::string name = marked ? key.substr(1) : key;
  if (is_reserved(name) || record.find(name) != nullptr) {
    return invalid("{}: a second field of one name, or a reserved name", at.text());
  }
  record.fields.emplace_back(name, HOLDFAST_TRY(marked ? non_finite(at) : value_of(at)));
  return {};
}

Result<bool> ends_within_line(Env& env, const Path& path) {
  const auto file = HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kRead}));
  const int64_t size = HOLDFAST_TRY(file->size());
  if (size == 0) return false;
  std::byte last{};
  HOLDFAST_TRY(file->read_at(size - 1, {&last, 1}));
  return last != std::byte{'\n'};
}

}  // namespace

// The fields come after these, by their own names.
void fields(Is<EventRecord> auto& self, auto&& field) {
  field(kEventKey, self.name);
  field(kWallKey, self.wall);
  field(kMonotonicKey, self.monotonic);
  field.allow_unknown();
}

std::string event_to_json(const EventRecord& record) {
  JsonWriter text(kCompactJson);
  text.open('{');
  FieldWriter field(text, false);
  fields(record, field);
  for (const auto& [key, value] : record.fields) {
    HOLDFAST_CHECK(!is_reserved(key), "event \"{}\": field \"{}\"", record.name, key);
    const double* number = std::get_if<double>(&value);
    const bool marked = number != nullptr && !std::isfinite(*number);
    std::visit(
        [&](const auto& plain) { field(marked ? kNonFiniteMark + key : key, plain); }, value);
  }
  text.close();
  return std::move(text).take();
}

Result<EventRecord> event_from_json(std::string_view line, std::string_view where) {
  const auto json = HOLDFAST_TRY(JsonDocument::parse(line, where));
  const JsonPlace root = json.root();
  EventRecord record;
  HOLDFAST_TRY(read_json(root, record));
  HOLDFAST_TRY(root.for_each([&](const std::string& key, const JsonPlace& at) {
    return add_field(record, key, at);
  }));
  return record;
}

Result<std::unique_ptr<JsonLinesSink>> JsonLinesSink::open(Env& env, const Path& path) {
  auto file = HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kAppend}));
  const bool torn = HOLDFAST_TRY(ends_within_line(env, path));
  HOLDFAST_TRY(env.sync_names(folder_of(path)));
  return std::unique_ptr<JsonLinesSink>(new JsonLinesSink(std::move(file), torn));
}

void JsonLinesSink::put(const EventRecord& record) {
  const std::string line = event_to_json(record) + "\n";
  MutexLock lock(mutex_);
  const std::string text = torn_ ? "\n" + line : line;
  // A failed append may have left a part of its line in the file.
  torn_ = !file_->append(bytes_of(text)).ok();
}

Result<EventLog> read_events(Env& env, const Path& path, int64_t limit) {
  const std::string text = HOLDFAST_TRY(env.read_text(path, limit));
  EventLog log;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.empty()) continue;
    Result<EventRecord> record = event_from_json(line, path.native());
    if (record.ok()) {
      log.events.push_back(*std::move(record));
    } else {
      ++log.skipped;
    }
  }
  return log;
}

}  // namespace holdfast

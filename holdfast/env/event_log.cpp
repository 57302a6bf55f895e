#include "holdfast/env/event_log.h"

#include <cmath>

#include "holdfast/base/json.h"

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

std::string_view name_of_non_finite(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

void put_field(OrderedJson& json, const std::string& key, const EventValue& value) {
  const double* number = std::get_if<double>(&value);
  if (number != nullptr && !std::isfinite(*number)) {
    json[kNonFiniteMark + key] = name_of_non_finite(*number);
  } else {
    std::visit([&](const auto& plain) { json[key] = plain; }, value);
  }
}

Result<EventValue> non_finite(const Json& value, std::string_view where) {
  if (value == "nan") return EventValue(std::nan(""));
  if (value == "inf") return EventValue(HUGE_VAL);
  if (value == "-inf") return EventValue(-HUGE_VAL);
  return invalid("{}: not a number's name; expected \"nan\", \"inf\" or \"-inf\"",
                 where);
}

Result<EventValue> value_of(const Json& value, std::string_view where) {
  if (value.is_boolean()) return EventValue(value.get<bool>());
  if (value.is_string()) return EventValue(value.get<std::string>());
  if (value.is_number_float()) return EventValue(value.get<double>());
  return EventValue(
      HOLDFAST_TRY(json_integer(value, where, std::numeric_limits<int64_t>::min())));
}

// Adds the field unless it is one of those that every event has.
Result<void> add_field(EventRecord& record, const std::string& key, const Json& value,
                       std::string_view where) {
  const bool marked = key.starts_with(kNonFiniteMark);
  if (!marked && is_reserved(key)) return {};
  const std::string name = marked ? key.substr(1) : key;
  if (is_reserved(name) || record.find(name) != nullptr) {
    return invalid("{}: a second field of one name, or a reserved name", where);
  }
  record.fields.emplace_back(
      name, HOLDFAST_TRY(marked ? non_finite(value, where) : value_of(value, where)));
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

std::string event_to_json(const EventRecord& record) {
  OrderedJson json;
  json[kEventKey] = record.name;
  json[kWallKey] = record.wall.time_since_epoch().count();
  json[kMonotonicKey] = record.monotonic.time_since_epoch().count();
  for (const auto& [key, value] : record.fields) {
    HOLDFAST_CHECK(!is_reserved(key), "event \"{}\": field \"{}\"", record.name, key);
    put_field(json, key, value);
  }
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Result<EventRecord> event_from_json(std::string_view line, std::string_view where) {
  const Json json = HOLDFAST_TRY(parse_json(line, where));
  Fields fields = HOLDFAST_TRY(Fields::of(json, std::string(where)));
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  EventRecord record;
  record.name = HOLDFAST_TRY(fields.text(std::string(kEventKey)));
  record.wall =
      WallTime(Duration(HOLDFAST_TRY(fields.integer(std::string(kWallKey), kLeast))));
  record.monotonic = Instant(
      Duration(HOLDFAST_TRY(fields.integer(std::string(kMonotonicKey), kLeast))));
  for (const auto& [key, value] : json.items()) {
    HOLDFAST_TRY(add_field(record, key, value, fmt::format("{}.{}", where, key)));
  }
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

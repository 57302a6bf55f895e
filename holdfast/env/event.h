// Events: how the library reports what happens. It never prints; every part emits typed
// events, and reports, traces and metrics are made from them.
//
// An event is a struct with a name and fields. One function, fields(), serves writing
// and reading:
//
//   struct SaveCommitted {
//     static constexpr std::string_view kName = "save_committed";
//     int64_t step = 0;
//     double seconds = 0;
//     static void fields(auto& self, auto&& field) {
//       field("step", self.step);
//       field("seconds", self.seconds);
//     }
//   };
//
//   emit(sink, env, SaveCommitted{.step = 400, .seconds = 1.8});
//
// Fields are int64_t, double, bool or std::string.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "holdfast/base/result.h"
#include "holdfast/env/env.h"

namespace holdfast {

using EventValue = std::variant<int64_t, double, bool, std::string>;

template <typename T>
concept EventField = std::same_as<T, int64_t> || std::same_as<T, double> ||
    std::same_as<T, bool> || std::same_as<T, std::string>;

// Any event, with the moment it was emitted.
struct EventRecord {
  std::string name;
  WallTime wall;
  Instant monotonic;  // of the emitting process
  std::vector<std::pair<std::string, EventValue>> fields;

  // Null if there is no such field.
  const EventValue* find(std::string_view field) const;
  friend bool operator==(const EventRecord&, const EventRecord&) = default;
};

// Receives events. put() is safe from several threads and returns no error: training
// must not stop because an event could not be written.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void put(const EventRecord& record) = 0;
};

template <typename Event>
void emit(EventSink& sink, Env& env, const Event& event) {
  EventRecord record{.name = std::string(Event::kName),
                     .wall = env.wall_now(),
                     .monotonic = env.now(),
                     .fields = {}};
  Event::fields(event, [&]<EventField T>(std::string_view field, const T& value) {
    record.fields.emplace_back(field, value);
  });
  sink.put(record);
}

// The error `event "save_committed": field "step" is missing`, where `what` is
// "missing".
Error event_field_error(const EventRecord& record, std::string_view field,
                        std::string_view what);

// The typed event of a record. Fails with kInvalid if the record is another event, or a
// field is missing or of another type; a newer writer's additional fields are ignored.
template <typename Event>
Result<Event> event_as(const EventRecord& record) {
  if (record.name != Event::kName) {
    return invalid("event \"{}\"; expected \"{}\"", record.name, Event::kName);
  }
  Event event;
  Result<void> outcome;
  Event::fields(event, [&]<EventField T>(std::string_view field, T& value) {
    const EventValue* found = record.find(field);
    if (found != nullptr && std::holds_alternative<T>(*found)) {
      value = std::get<T>(*found);
    } else if (outcome.ok()) {
      outcome = event_field_error(record, field, found ? "another type" : "missing");
    }
  });
  if (!outcome.ok()) return std::move(outcome).error();
  return event;
}

}  // namespace holdfast

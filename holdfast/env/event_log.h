// The event file: one JSON object a line, one file a rank, only ever appended to.
//
//   {"event":"save_committed","wall_ns":…,"mono_ns":…,"step":400,"seconds":1.8}
//
// A crash can tear the last lines. A writer that opens such a file ends the torn line
// first, so that its own events are whole; the reader skips and counts what is no
// event. Numbers that JSON does not know are the strings "nan", "inf" and "-inf" under a
// name with "~" in front, so that a double stays one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/event.h"

namespace holdfast {

// Without the newline. Text that is not UTF-8 has its bad bytes replaced.
std::string event_to_json(const EventRecord& record);
// Its fields come in no particular order. Fails with kInvalid, naming `where`.
Result<EventRecord> event_from_json(std::string_view line, std::string_view where);

// Appends each event as one line in one write. Events are not synced one by one: a
// crash of the process loses none, a power loss may lose the last.
class JsonLinesSink : public EventSink {
 public:
  // Creates the file or goes on with it, and makes its name durable where the file
  // system can. Env must outlive the sink.
  static Result<std::unique_ptr<JsonLinesSink>> open(Env& env, const Path& path);

  void put(const EventRecord& record) override;
  // Events that could not be written, and why the last of them was not.
  int64_t lost() const;
  Result<void> last_failure() const;
  // Makes all events so far durable.
  Result<void> sync();

 private:
  JsonLinesSink(std::unique_ptr<File> file, bool torn)
      : file_(std::move(file)), torn_(torn) {}

  const std::unique_ptr<File> file_;
  mutable Mutex mutex_;
  bool torn_ HOLDFAST_GUARDED_BY(mutex_);  // the file ends within a line
  int64_t lost_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  Result<void> last_failure_ HOLDFAST_GUARDED_BY(mutex_);
};

struct EventLog {
  std::vector<EventRecord> events;
  int64_t skipped = 0;  // lines that are no events: torn by a crash
};

// Fails only if the file cannot be read, or with kInvalid if it is longer than `limit`
// bytes.
Result<EventLog> read_events(Env& env, const Path& path, int64_t limit = kReadLimit);

}  // namespace holdfast

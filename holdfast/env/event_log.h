// The event file: one JSON object a line, one file a rank, only ever appended to.
//
//   {"event":"save_committed","wall_ns":…,"mono_ns":…,"step":400,"seconds":1.8}
//
// A crash can leave an incomplete last line. A writer that opens such a file first ends
// that line, so that its own events are complete; the reader skips and counts lines
// that are no events. JSON has no numbers that are not finite: they are the strings
// "nan", "inf" and "-inf", and their field's name has "~" in front, so that the reader
// makes doubles of them again.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/env/event.h"
#include "holdfast/env/file.h"

namespace holdfast {

// The event's line without the newline. Bytes that are not UTF-8 are replaced.
std::string event_to_json(const EventRecord& record);
// The event of a line, with its fields in no particular order. Fails with kInvalid and
// a message that names `where`.
Result<EventRecord> event_from_json(std::string_view line, std::string_view where);

// Appends each event as one line in one write. Events are not synced one by one: a
// crash of the process loses no event, a power loss may lose the last ones.
class JsonLinesSink : public EventSink {
 public:
  // Creates the file or appends to it, and makes its name durable where the file system
  // can. `env` must outlive the sink.
  static Result<std::unique_ptr<JsonLinesSink>> open(Env& env, const Path& path);

  // An event that cannot be written is lost.
  void put(const EventRecord& record) override;

 private:
  JsonLinesSink(std::unique_ptr<File> file, bool torn)
      : file_(std::move(file)), torn_(torn) {}

  const std::unique_ptr<File> file_;
  Mutex mutex_;
  bool torn_ HOLDFAST_GUARDED_BY(mutex_);  // the file ends within a line
};

struct EventLog {
  std::vector<EventRecord> events;
  int64_t skipped = 0;  // lines that are no events, as a crash leaves them
};

// Fails only if the file cannot be read, or with kInvalid if it is longer than `limit`
// bytes.
Result<EventLog> read_events(Env& env, const Path& path, int64_t limit = kReadLimit);

}  // namespace holdfast

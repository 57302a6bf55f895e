#include "holdfast/schedule/learn.h"

#include <algorithm>
#include <utility>

namespace holdfast {
namespace {

std::optional<double> number_of(const EventRecord& record, std::string_view field) {
  const EventValue* value = record.find(field);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* count = std::get_if<int64_t>(value)) {
    return static_cast<double>(*count);
  }
  return std::nullopt;
}

std::optional<int64_t> integer_of(const EventRecord& record, std::string_view field) {
  const EventValue* value = record.find(field);
  const auto* number = value == nullptr ? nullptr : std::get_if<int64_t>(value);
  return number == nullptr ? std::nullopt : std::optional(*number);
}

// Reads events one by one. With each new process its knowledge about the process starts
// again.
class Reader {
 public:
  explicit Reader(int64_t workers) : workers_(static_cast<double>(workers)) {}

  void read(const EventRecord& record) {
    if (record.name == "run_taken_over") return taken_over(record);
    if (record.name == "job_opened") return opened(record);
    if (record.name == "restored") return restored(record);
    const bool closed = record.name == "job_closed";
    const bool rejoined = record.name == "job_rejoined";
    if (rejoined) learned_.recovered += 1;
    if (!closed && !rejoined && !record.name.starts_with("save_")) return;
    alive(record.wall);
    if (record.name == "save_captured") captured(record);
    if (record.name == "save_durable") durable(record);
    if (record.name == "save_cost") cost(record);
    if (closed) end_process(true);
  }

  Learned learned() {
    learned_.stall = costs_.stall_known() ? costs_.stall() : stalls_.mean();
    learned_.persist = costs_.persist_known() ? costs_.persist() : persists_.mean();
    return learned_;
  }

 private:
  // Records that the process was at work until then.
  void alive(WallTime until) {
    if (last_ && until > *last_) {
      const std::chrono::duration<double> passed = until - *last_;
      learned_.worker_seconds += passed.count() * workers_;
    }
    if (!last_ || until > *last_) last_ = until;
  }

  void end_process(bool clean) {
    failed_ = last_ && !clean;
    if (failed_) learned_.failures += 1;
    last_ = std::nullopt;
    marked_ = false;
    first_ = true;
    first_cost_ = true;
  }

  // A previous owner that let go may be another program than the process of these
  // events, for example `holdfast gc` in between.
  void taken_over(const EventRecord& record) {
    const EventValue* reason = record.find("reason");
    const bool let_go =
        reason != nullptr && *reason == EventValue(std::string("it let go"));
    const auto seen = integer_of(record, "last_seen_ns");
    if (!let_go && last_ && seen && *seen <= record.wall.time_since_epoch().count()) {
      alive(WallTime(Duration(*seen)));
    }
    end_process(let_go && !marked_);
    taken_over_ = true;
  }

  void opened(const EventRecord& record) {
    const EventValue* field = record.find("joined");
    const bool joined = field != nullptr && *field == EventValue(true);
    // If the run was taken over, the end of the process before was counted then. A lost
    // process that was only stopped may emit events after that, which say nothing.
    if (!std::exchange(taken_over_, false) || !joined) end_process(false);
    if (joined) {
      last_ = std::nullopt;
      learned_.recovered += 1;
      if (failed_) learned_.failures -= 1;
    }
    alive(record.wall);
    marked_ = true;
  }

  // In a process that began with job_opened, `restored` is not a start: the job went
  // back to an older step.
  void restored(const EventRecord& record) {
    if (!marked_) end_process(false);
    alive(record.wall);
  }

  // The first save of a process counts only if there is no other save.
  void captured(const EventRecord& record) {
    captured_step_ = number_of(record, "step");
    captured_seconds_ = number_of(record, "seconds").value_or(-1);
    if (!first_ || stalls_.empty()) stalls_.add(captured_seconds_);
    if (first_ && stalls_.size() == 1) only_first_ = true;
    if (!first_ && only_first_) {
      stalls_ = {}, persists_ = {}, only_first_ = false;
      stalls_.add(captured_seconds_);
    }
  }

  void durable(const EventRecord& record) {
    const double seconds = number_of(record, "seconds").value_or(-1);
    if (number_of(record, "step") == captured_step_ && captured_seconds_ >= 0 &&
        (!first_ || persists_.empty())) {
      persists_.add(std::max(0.0, seconds - captured_seconds_));
    }
    first_ = false;
  }

  // SaveCosts leaves out the first save of the first process if there is another one,
  // and this function those of later processes.
  void cost(const EventRecord& record) {
    if (std::exchange(first_cost_, false) && costs_.stall_known()) return;
    costs_.stalled(number_of(record, "stall").value_or(-1));
    costs_.persisted(number_of(record, "persist").value_or(-1));
  }

  const double workers_;
  Learned learned_;
  // What the job has measured, and, for logs of older versions, what the saver has: the
  // time until a save was captured, most of which may not have been a stall.
  SaveCosts costs_;
  Window stalls_, persists_;
  std::optional<WallTime>
      last_;                 // last event of this process; nullopt before its first
  bool marked_ = false;      // whether the process began with job_opened
  bool failed_ = false;      // the process before this one has failed
  bool taken_over_ = false;  // the run was taken over, and job_opened has not come yet
  std::optional<double> captured_step_;
  double captured_seconds_ = -1;
  bool first_ = true, only_first_ = false, first_cost_ = true;
};

}  // namespace

Learned learn(std::span<const EventRecord> events, int64_t workers) {
  Reader reader(std::max<int64_t>(workers, 1));
  for (const EventRecord& record : events) reader.read(record);
  return reader.learned();
}

}  // namespace holdfast

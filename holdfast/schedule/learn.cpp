#include "holdfast/schedule/learn.h"

#include <algorithm>

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

class Reader {
 public:
  explicit Reader(int64_t workers) : workers_(static_cast<double>(workers)) {}

  void read(const EventRecord& record) {
    if (record.name == "restored") restart(record);
    if (last_ && record.wall > *last_) {
      const std::chrono::duration<double> passed = record.wall - *last_;
      learned_.worker_seconds += passed.count() * workers_;
    }
    last_ = record.wall;
    if (record.name == "save_captured") captured(record);
    if (record.name == "save_durable") durable(record);
  }

  Learned learned() {
    learned_.stall = stalls_.mean();
    learned_.persist = persists_.mean();
    return learned_;
  }

 private:
  void restart(const EventRecord& record) {
    const auto step = number_of(record, "step");
    if (last_ && step && captured_step_ && *step != *captured_step_) {
      learned_.failures += 1;
    }
    last_ = std::nullopt;
    first_ = true;
  }

  // The first save of a process counts only if there is no other.
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

  const double workers_;
  Learned learned_;
  Window stalls_, persists_;
  std::optional<WallTime> last_;
  std::optional<double> captured_step_;
  double captured_seconds_ = -1;
  bool first_ = true, only_first_ = false;
};

}  // namespace

Learned learn(std::span<const EventRecord> events, int64_t workers) {
  Reader reader(std::max<int64_t>(workers, 1));
  for (const EventRecord& record : events) reader.read(record);
  return reader.learned();
}

}  // namespace holdfast

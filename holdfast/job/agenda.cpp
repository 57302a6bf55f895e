#include "holdfast/job/agenda.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "holdfast/base/checked.h"
#include "holdfast/base/number_text.h"
#include "holdfast/checkpoint/wire_tags.h"

namespace holdfast {
namespace {

constexpr Duration kAhead = std::chrono::seconds(1);
constexpr int64_t kMostAhead = 4096;  // steps
constexpr size_t kMostSaves = 4;      // announced ahead at one time

// The text of an announcement, such as "120 117 every 50 steps": saves are decided up
// to step 120; a save is due after step 117 (-1: no save is due); the rest says why.
std::string print(int64_t until, const std::optional<Appointment>& appointment) {
  if (!appointment.has_value()) return fmt::format("{} -1 ", until);
  return fmt::format("{} {} {}", until, appointment->step, appointment->due.why);
}

std::string_view kind_of(const std::optional<Appointment>& appointment) {
  if (!appointment.has_value()) return "save";
  return appointment->due.change ? "change" : appointment->due.stop ? "stop" : "save";
}

// Returns the number at the front of `text`, and removes it and the blank behind it.
int64_t take_word(std::string_view& text) {
  const int64_t number = take_number<int64_t>(text).value_or(-1);
  if (!text.empty()) text.remove_prefix(1);
  return number;
}

}  // namespace

Agenda::Agenda(Env& env, Transport* transport, Decide decide, Duration patience)
    : env_(env),
      transport_(transport),
      channel_(env, transport, kAgendaTag, true),
      decide_(std::move(decide)),
      patience_(patience) {}

Result<Due> Agenda::at(int64_t step) {
  if (channel_.coordinator()) {
    measure(step);
    while (behind(step)) announce(step);
  } else {
    while (!until_.has_value() || *until_ < step) HOLDFAST_TRY(hear());
  }
  Due due;
  while (!appointed_.empty() && appointed_.begin()->first <= step) {
    // A change is never passed over: a save that it displaces is soon due again.
    if (!due.change) due = appointed_.begin()->second;
    appointed_.erase(appointed_.begin());
  }
  return due;
}

// True if rank 0 should announce more: every announcement costs the training loop a
// tenth of a millisecond, so it waits until a quarter of the time ahead is left, which
// is still long for a message. kMostSaves keeps it from announcing thousands of
// saves at once when steps are short and every step is saved.
bool Agenda::behind(int64_t step) const {
  if (stopping_) return false;  // the last save is announced already
  // A job of one rank has nobody to tell, so it can stop at this very step.
  if (stop_.has_value() && channel_.size() == 1) return true;
  if (!until_.has_value() || *until_ < step) return true;
  return *until_ < step + divide_up(lead_, int64_t{4}) &&
         appointed_.size() < kMostSaves;
}

void Agenda::measure(int64_t step) {
  const Instant now = env_.now();
  if (channel_.size() == 1) {
    lead_ = 0;  // there is no other rank to tell
  } else if (last_.has_value() && step > last_->first) {
    const Duration one =
        std::max<Duration>((now - last_->second) / (step - last_->first), Duration(1));
    lead_ = std::clamp<int64_t>(kAhead / one, 2, kMostAhead);
  }
  last_ = {step, now};
}

void Agenda::announce(int64_t step) {
  hear_stops();
  hear_wishes();
  const int64_t first = until_.has_value() ? *until_ + 1 : step;
  const int64_t last = std::max(first, step + lead_);
  std::optional<Appointment> appointment;
  if (stop_.has_value()) {
    appointment = {.step = channel_.size() == 1 ? step : first,
                   .due = {.save = true, .stop = true, .why = *stop_}};
  } else if (wish_.has_value()) {
    appointment = {.step = first,
                   .due = {.save = true, .why = *std::exchange(wish_, std::nullopt)}};
  } else {
    appointment = decide_(first, last);
  }
  // When step numbers jump past a planned save, the save is made once, at this step.
  if (appointment.has_value()) appointment->step = std::max(appointment->step, step);
  const int64_t until = appointment.has_value() ? appointment->step : last;
  if (channel_.size() > 1) tell(until, appointment);
  note(until, appointment);
}

// Ignores a failed send: the rank that misses the message fails with a timeout of its
// own.
void Agenda::tell(int64_t until, const std::optional<Appointment>& appointment) {
  const Message message{.serial = ++serial_,
                        .kind = std::string(kind_of(appointment)),
                        .text = print(until, appointment)};
  static_cast<void>(channel_.tell_all(message, patience_));
}

void Agenda::hear_stops() {
  if (transport_ == nullptr) return;
  for (int r = 1; r < transport_->size() && !stop_.has_value(); ++r) {
    const Result<Bytes> asked = transport_->recv(r, kStopTag, env_.now());
    if (asked.ok()) stop_ = std::string(text_of(*asked));
  }
}

// Several ranks may ask for the same reason: they get one save.
void Agenda::hear_wishes() {
  if (transport_ == nullptr) return;
  for (int r = 1; r < transport_->size(); ++r) {
    const Result<Bytes> asked = transport_->recv(r, kWishTag, env_.now());
    if (asked.ok()) wish_ = std::string(text_of(*asked));
  }
}

Result<void> Agenda::hear() {
  const Message message = HOLDFAST_TRY(channel_.hear(++serial_, patience_));
  std::string_view text = message.text;
  const int64_t until = take_word(text);
  const int64_t step = take_word(text);
  if (step < 0) {
    note(until, std::nullopt);
  } else {
    note(until, Appointment{.step = step,
                            .due = {.save = message.kind != "change",
                                    .stop = message.kind == "stop",
                                    .change = message.kind == "change",
                                    .why = std::string(text)}});
  }
  return {};
}

void Agenda::note(int64_t until, const std::optional<Appointment>& appointment) {
  until_ = until;
  if (!appointment.has_value()) return;
  stopping_ = appointment->due.stop;
  appointed_[appointment->step] = appointment->due;
}

void Agenda::rejoin(int64_t last) {
  channel_.reset();
  serial_ = 0;
  until_ = last < 0 ? std::nullopt : std::optional(last);
  appointed_.clear();
  stopping_ = false;
  last_.reset();
}

Result<void> Agenda::ask_to_save(const std::string& why) {
  if (channel_.coordinator()) {
    wish_ = why;
    return {};
  }
  return transport_->send(0, kWishTag, bytes_of(why), env_.now() + patience_);
}

Result<void> Agenda::ask_to_stop(const std::string& why) {
  if (channel_.coordinator()) {
    stop_ = why;
    return {};
  }
  return transport_->send(0, kStopTag, bytes_of(why), env_.now() + patience_);
}

}  // namespace holdfast

#include "holdfast/checkpoint/channel.h"

#include <map>

#include "holdfast/base/json_fields.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/transport/late_ranks.h"

namespace holdfast {
namespace {

constexpr std::string_view kWhere = "message of another rank";

Result<ErrorCode> parse_code(std::string_view name) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kIo); ++code) {
    if (name_of(static_cast<ErrorCode>(code)) == name) return static_cast<ErrorCode>(code);
  }
  return invalid("error code \"{}\" is unknown", name);
}

}  // namespace

// A message that names a path may have bytes that are not UTF-8.
void put_json(JsonWriter& out, const std::optional<Error>& error) {
  if (!error) return out.put_null();
  put_json(out, std::pair(name_of(error->code()), to_hex(bytes_of(error->message()))));
}
Result<void> read_json(const JsonPlace& at, std::optional<Error>& error) {
  error.reset();
  if (at.is_null()) return {};
  std::pair<std::string, std::string> said;
  HOLDFAST_TRY(read_json(at, said));
  const ErrorCode code = HOLDFAST_TRY(parse_code(said.first));
  error = Error(code, std::string(text_of(HOLDFAST_TRY(from_hex(said.second)))));
  return {};
}

void fields(Is<Message> auto& self, auto&& field) {
  field.integer("serial", self.serial, kLeastInteger, kMostInteger);
  field("kind", self.kind);
  field.text("attempt", self.attempt, hex64, parse_hex64, "16 hexadecimal digits");
  bytes_field("text", self.text, field);
  field("files", self.files);
  field("error", self.error);
}

bool operator==(const Message& a, const Message& b) {
  return encode_message(a) == encode_message(b);
}

Bytes encode_message(const Message& message) {
  return copy_of(bytes_of(to_json_text(message, kDigestedJson)));
}

Result<Message> decode_message(ByteView bytes) {
  return from_json<Message>(text_of(bytes), kWhere, ErrorCode::kCorrupt);
}

Result<void> Channel::tell_all(const Message& message, Duration at_most) {
  const Bytes bytes = encode_message(message);
  const Instant deadline = env_.now() + at_most;
  Result<void> outcome;
  for (int rank = 1; rank < size(); ++rank) {
    Result<void> sent = transport_->send(rank, tag_, bytes, deadline);
    if (outcome.ok()) outcome = std::move(sent);
  }
  return outcome;
}

Result<Message> Channel::hear(int64_t serial, Duration at_most) {
  return std::move(receive_all({0}, tag_, serial, at_most).front());
}

Result<void> Channel::report(const Message& message, Duration at_most) {
  return transport_->send(0, tag_ + 1, encode_message(message), env_.now() + at_most);
}

std::vector<Message> Channel::collect(Message own, Duration at_most) {
  const int64_t serial = own.serial;
  std::vector<int> others, silent;
  for (int rank = 1; rank < size(); ++rank) others.push_back(rank);
  std::vector<Message> all{std::move(own)};
  for (Result<Message>& heard : receive_all(others, tag_ + 1, serial, at_most)) {
    const int rank = static_cast<int>(all.size());
    if (heard.ok()) {
      all.push_back(*std::move(heard));
      continue;
    }
    if (heard.error().code() == ErrorCode::kTimeout) silent.push_back(rank);
    all.push_back({.serial = serial,
                   .error = heard.error().within(fmt::format("rank {}", rank))});
  }
  for (const int rank : silent) {
    all[static_cast<size_t>(rank)].error = timed_out(
        "nothing from {} within {:.0f} s; expected the same calls on all ranks",
        name_ranks(silent), std::chrono::duration<double>(at_most).count());
  }
  return all;
}

std::vector<Result<Message>> Channel::receive_all(std::vector<int> ranks, Tag tag,
                                                  int64_t serial, Duration at_most) {
  static const LateRanks kNobody;
  std::map<int, Result<Message>> heard;
  receive_from(
      env_, watched_ && transport_ != nullptr ? transport_->late_watch() : kNobody,
      std::move(ranks), env_.now() + at_most,
      [&](int rank, Instant until) { return receive(rank, tag, serial, until); },
      [&](int rank, Result<Message> message) {
        heard.emplace(rank, std::move(message));
      });
  std::vector<Result<Message>> all;
  for (auto& [rank, message] : heard) all.push_back(std::move(message));
  return all;
}

Result<void> Channel::agree(const Result<void>& own, Duration at_most) {
  Message message{.serial = agreed_ + 1, .kind = "fared"};
  if (!own.ok()) message.error = own.error();
  if (coordinator()) {
    for (const Message& report : collect(message, at_most)) {
      if (!message.error.has_value()) message.error = report.error;
    }
    // A rank that this message does not reach fails at its own deadline.
    static_cast<void>(tell_all(message, at_most));
  } else {
    if (!reported_) HOLDFAST_TRY(report(message, at_most));
    reported_ = true;
    message = HOLDFAST_TRY(hear(message.serial, at_most * 2));
    reported_ = false;
  }
  ++agreed_;
  if (message.error.has_value()) return *message.error;
  return {};
}

Result<Message> Channel::receive(int from, Tag tag, int64_t serial, Instant deadline) {
  std::optional<Message> message;
  if (auto kept = early_.extract({from, tag})) message = std::move(kept.mapped());
  while (true) {
    if (!message.has_value()) {
      const Bytes bytes = HOLDFAST_TRY(transport_->recv(from, tag, deadline));
      message = HOLDFAST_TRY(decode_message(bytes));
    }
    if (message->serial == serial) return *std::move(message);
    if (message->serial > serial) break;
    message.reset();
  }
  const int64_t later = message->serial;
  early_[{from, tag}] = *std::move(message);
  return unavailable("rank {}: sent message number {}; expected number {}", from, later,
                     serial);
}

}  // namespace holdfast

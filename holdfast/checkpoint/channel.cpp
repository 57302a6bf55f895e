#include "holdfast/checkpoint/channel.h"

#include <map>

#include "holdfast/shard/step_name.h"
#include "holdfast/state/object_json.h"
#include "holdfast/transport/late_ranks.h"

namespace holdfast {
namespace {

constexpr std::string_view kWhere = "message of another rank";
using Dict = Object::Dict;

Object text(std::string value) { return Object(Object::Value(std::move(value))); }
// Encodes text as bytes: a path, and a message that names one, may contain bytes that
// are not UTF-8.
Object raw(std::string_view value) {
  return Object(Object::Value(copy_of(bytes_of(value))));
}
Object number(int64_t value) { return Object(Object::Value(value)); }

void put(Dict& dict, const char* key, Object value) {
  dict.items.emplace_back(text(key), std::move(value));
}

// Gives the members of a dict by their names.
class Members {
 public:
  explicit Members(const Object& object) {
    if (const auto* dict = object.as<Dict>()) {
      for (const auto& [key, value] : dict->items) {
        if (const auto* name = key.as<std::string>()) members_[*name] = &value;
      }
    }
  }
  template <typename T>
  Result<T> get(const char* key) const {
    const auto found = members_.find(key);
    if (found != members_.end()) {
      if (const T* value = found->second->as<T>()) return *value;
    }
    return corrupt("{}: \"{}\" is missing or has another type", kWhere, key);
  }
  bool has(const char* key) const { return members_.contains(key); }

 private:
  std::map<std::string, const Object*> members_;
};

Object encode_file(const ManifestFile& file) {
  Dict dict;
  put(dict, "name", text(file.name));
  put(dict, "bytes", number(file.bytes));
  put(dict, "digest", text(file.digest));
  return Object(std::move(dict));
}

Result<ManifestFile> decode_file(const Object& object) {
  const Members members(object);
  ManifestFile file;
  file.name = HOLDFAST_TRY(members.get<std::string>("name"));
  file.bytes = HOLDFAST_TRY(members.get<int64_t>("bytes"));
  file.digest = HOLDFAST_TRY(members.get<std::string>("digest"));
  return file;
}

Result<ErrorCode> parse_code(const std::string& name) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kIo); ++code) {
    if (name_of(static_cast<ErrorCode>(code)) == name)
      return static_cast<ErrorCode>(code);
  }
  return corrupt("{}: error code \"{}\" is unknown", kWhere, name);
}

}  // namespace

bool operator==(const Message& a, const Message& b) {
  return encode_message(a) == encode_message(b);
}

Bytes encode_message(const Message& message) {
  Dict dict;
  put(dict, "serial", number(message.serial));
  put(dict, "kind", text(message.kind));
  put(dict, "attempt", text(hex64(message.attempt)));
  put(dict, "text", raw(message.text));
  Object::List files;
  for (const ManifestFile& file : message.files)
    files.items.push_back(encode_file(file));
  put(dict, "files", Object(std::move(files)));
  if (message.error.has_value()) {
    put(dict, "code", text(std::string(name_of(message.error->code()))));
    put(dict, "message", raw(message.error->message()));
  }
  const Result<std::string> json = encode_object(Object(std::move(dict)));
  HOLDFAST_CHECK(json.ok(), "{}", json.error().message());
  return copy_of(bytes_of(*json));
}

Result<Message> decode_message(ByteView bytes) {
  const Object object = HOLDFAST_TRY(decode_object(bytes, std::string(kWhere)));
  const Members members(object);
  Message message;
  message.serial = HOLDFAST_TRY(members.get<int64_t>("serial"));
  message.kind = HOLDFAST_TRY(members.get<std::string>("kind"));
  const Bytes more = HOLDFAST_TRY(members.get<Bytes>("text"));
  message.text = text_of(more);
  const auto attempt = parse_hex64(HOLDFAST_TRY(members.get<std::string>("attempt")));
  if (!attempt.has_value())
    return corrupt("{}: \"attempt\" is no number; expected 16 hexadecimal digits",
                   kWhere);
  message.attempt = *attempt;
  const auto files = HOLDFAST_TRY(members.get<Object::List>("files"));
  for (const Object& file : files.items) {
    message.files.push_back(HOLDFAST_TRY(decode_file(file)));
  }
  if (!members.has("code")) return message;
  const ErrorCode code =
      HOLDFAST_TRY(parse_code(HOLDFAST_TRY(members.get<std::string>("code"))));
  const Bytes what = HOLDFAST_TRY(members.get<Bytes>("message"));
  message.error = Error(code, std::string(text_of(what)));
  return message;
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

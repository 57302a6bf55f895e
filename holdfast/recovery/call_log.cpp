#include "holdfast/recovery/call_log.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "holdfast/base/crc32c.h"
#include "holdfast/checkpoint/wire_tags.h"

namespace holdfast {
namespace {

// A record: the magic, the checksum of all that follows it, six numbers, and the group, the call,
// the text and the bytes. All numbers are little endian.
constexpr uint32_t kMagic = 0x4c434648;  // "HFCL"
constexpr size_t kChecked = 8;           // where the checksum begins
constexpr size_t kHeadBytes = 56;
constexpr int64_t kMessageBytes = int64_t{4} << 20;  // of one message with records
constexpr int64_t kFileBytes = int64_t{64} << 20;    // before another file is begun
constexpr uint64_t kMostPassed = uint64_t{1} << 40;  // bytes of a record that another rank sends

struct Head {
  uint32_t magic = 0, crc = 0;
  int64_t update = 0, number = 0;
  int32_t from = 0, to = 0;
  uint32_t group = 0, call = 0;  // lengths
  uint64_t text = 0, bytes = 0;
};

void write_number(uint32_t value, Bytes& bytes, size_t place) {
  store_little_endian(value, ByteSpan(bytes).subspan(place));
}
void write_number(uint64_t value, Bytes& bytes, size_t place) {
  store_little_endian(value, ByteSpan(bytes).subspan(place));
}

uint32_t get32(ByteView bytes, size_t place) {
  return load_little_endian<uint32_t>(bytes.subspan(place));
}
uint64_t get64(ByteView bytes, size_t place) {
  return load_little_endian<uint64_t>(bytes.subspan(place));
}

Head head_of(ByteView packed) {
  return {.magic = get32(packed, 0),
          .crc = get32(packed, 4),
          .update = static_cast<int64_t>(get64(packed, 8)),
          .number = static_cast<int64_t>(get64(packed, 16)),
          .from = static_cast<int32_t>(get32(packed, 24)),
          .to = static_cast<int32_t>(get32(packed, 28)),
          .group = get32(packed, 32),
          .call = get32(packed, 36),
          .text = get64(packed, 40),
          .bytes = get64(packed, 48)};
}

void append(ByteView part, Bytes& to) { to.insert(to.end(), part.begin(), part.end()); }

Bytes pack_record(const CallKey& key, std::string_view text,
                  std::span<const ByteView> parts) {
  size_t bytes = 0;
  for (const ByteView part : parts) bytes += part.size();
  Bytes packed(kHeadBytes);
  packed.reserve(kHeadBytes + key.group.size() + key.call.size() + text.size() + bytes);
  write_number(kMagic, packed, 0);
  write_number(static_cast<uint64_t>(key.update), packed, 8);
  write_number(static_cast<uint64_t>(key.number), packed, 16);
  write_number(static_cast<uint32_t>(key.from), packed, 24);
  write_number(static_cast<uint32_t>(key.to), packed, 28);
  write_number(static_cast<uint32_t>(key.group.size()), packed, 32);
  write_number(static_cast<uint32_t>(key.call.size()), packed, 36);
  write_number(static_cast<uint64_t>(text.size()), packed, 40);
  write_number(static_cast<uint64_t>(bytes), packed, 48);
  for (const std::string_view one : {std::string_view(key.group),
                                     std::string_view(key.call), text}) {
    append(bytes_of(one), packed);
  }
  for (const ByteView part : parts) append(part, packed);
  write_number(static_cast<uint32_t>(crc32c(ByteView(packed).subspan(kChecked))), packed, 4);
  return packed;
}

// A record at the beginning of some bytes.
struct Parsed {
  CallKey key{};
  std::string_view text{};
  ByteView bytes{};
  ByteView whole{};
};

Result<Parsed> parse_record(ByteView from) {
  if (from.size() < kHeadBytes) {
    return corrupt("log of calls: {} bytes are left; expected a record of {} or more",
                   from.size(), kHeadBytes);
  }
  const Head head = head_of(from);
  if (head.magic != kMagic) {
    return corrupt("log of calls: a record begins with {:08x}; expected {:08x}", head.magic,
                   kMagic);
  }
  size_t left = from.size() - kHeadBytes;
  for (const uint64_t part : {uint64_t{head.group}, uint64_t{head.call}, head.text,
                              head.bytes}) {
    if (part > left) {
      return corrupt("log of calls: a record has a part of {} bytes; expected at most the {} "
                     "that are left",
                     part, left);
    }
    left -= static_cast<size_t>(part);
  }
  const ByteView whole = from.first(from.size() - left);
  if (const Crc32c seen = crc32c(whole.subspan(kChecked)); seen != head.crc) {
    return corrupt("log of calls: a record of update {} has crc {:08x}; expected {:08x}",
                   head.update, seen, head.crc);
  }
  ByteView rest = whole.subspan(kHeadBytes);
  const auto next = [&](uint64_t size) {
    const ByteView part = rest.first(static_cast<size_t>(size));
    rest = rest.subspan(static_cast<size_t>(size));
    return text_of(part);
  };
  Parsed parsed;
  parsed.key = {.update = head.update, .from = head.from, .to = head.to,
                .number = head.number};
  parsed.key.group = next(head.group);
  parsed.key.call = next(head.call);
  parsed.text = next(head.text);
  parsed.bytes = rest;
  parsed.whole = whole;
  return parsed;
}

// How many of these bytes are records of which the last byte is here, too. All of them, if one has
// lengths that no record has: parse_record() then says so.
size_t size_of_whole_records(ByteView bytes) {
  size_t whole = 0;
  while (bytes.size() - whole >= kHeadBytes) {
    const Head head = head_of(bytes.subspan(whole));
    if (head.magic != kMagic || head.text > kMostPassed || head.bytes > kMostPassed) {
      return bytes.size();
    }
    const uint64_t size = kHeadBytes + head.group + head.call + head.text + head.bytes;
    if (size > bytes.size() - whole) break;
    whole += static_cast<size_t>(size);
  }
  return whole;
}

// Sends bytes to one rank and receives those of another one, in turns: no rank waits for room
// in the queue of another one that does not receive.
Result<Bytes> swap_bytes(Transport& transport, int to, int from, ByteView mine,
                         Instant deadline) {
  Bytes head(sizeof(uint64_t));
  write_number(static_cast<uint64_t>(mine.size()), head, 0);
  HOLDFAST_TRY(transport.send(to, kPassOnTag, head, deadline));
  const Bytes told = HOLDFAST_TRY(transport.recv(from, kPassOnTag, deadline));
  if (told.size() != head.size() || get64(told, 0) > kMostPassed) {
    return corrupt("log of calls: rank {} passes on a record without its size", from);
  }
  Bytes theirs(static_cast<size_t>(get64(told, 0)));
  for (size_t at = 0; at < std::max(mine.size(), theirs.size()); at += kMessageBytes) {
    if (at < mine.size()) {
      const size_t size = std::min<size_t>(kMessageBytes, mine.size() - at);
      HOLDFAST_TRY(transport.send_in_place(to, kPassOnTag, mine.subspan(at, size), deadline));
    }
    if (at >= theirs.size()) continue;
    const ByteSpan into = ByteSpan(theirs).subspan(
        at, std::min<size_t>(kMessageBytes, theirs.size() - at));
    const size_t size = HOLDFAST_TRY(transport.recv_into(from, kPassOnTag, into, deadline));
    if (size != into.size()) {
      return corrupt("log of calls: rank {} passes on {} bytes; expected {}", from, size,
                     into.size());
    }
  }
  return theirs;
}

bool is_wanted(const CallKey& key, const CallLog::Wanted& wanted) {
  if (key.update <= wanted.after || key.update > wanted.through) return false;
  if (key.to != kAllRanks) return key.to == wanted.to;
  return std::ranges::find(wanted.groups, key.group) != wanted.groups.end();
}

}  // namespace

std::string to_string(const CallKey& key) {
  if (key.from != kAllRanks && key.from == key.to) {
    return fmt::format("{} of update {} of rank {}", key.call, key.update, key.from);
  }
  const std::string what =
      key.to == kAllRanks
          ? fmt::format("{} {}", key.call, key.number)
          : fmt::format("message {} from rank {} to rank {}", key.number, key.from, key.to);
  const std::string when =
      key.update == kStartUp ? "start-up" : fmt::format("update {}", key.update);
  return fmt::format("{} of {} in group {}", what, when, key.group);
}

void CallLog::configure(Options options) {
  MutexLock lock(mutex_);
  options_ = std::move(options);
}

Result<void> CallLog::put(const CallKey& key, std::string_view text,
                          std::span<const ByteView> parts) {
  Bytes packed = pack_record(key, text, parts);  // outside of the lock: it may take long
  MutexLock lock(mutex_);
  Result<void> kept = keep(key, std::move(packed));
  if (!kept.ok()) hole_ = std::max(hole_, key.update);
  return kept;
}

Result<void> CallLog::keep(const CallKey& key, Bytes packed) {
  if (const auto old = kept_.find(key); old != kept_.end()) forget(old);
  const auto size = static_cast<int64_t>(packed.size());
  Kept kept{.size = size};
  if (key.update == kStartUp) {
    kept.bytes = std::move(packed);
  } else if (in_memory_ + size <= options_.memory) {
    kept.bytes = std::move(packed);
    kept.is_limited = true;
  } else {
    kept = HOLDFAST_TRY(spill(packed));
  }
  add(key, std::move(kept));
  return {};
}

void CallLog::keep_received(const CallKey& key, Bytes packed) {
  const auto size = static_cast<int64_t>(packed.size());
  if (received_ + size > options_.memory && !options_.spill.empty()) {
    if (Result<Kept> spilled = spill(packed); spilled.ok()) {
      return add(key, *std::move(spilled));
    }
  }
  received_ += size;
  add(key, Kept{.bytes = std::move(packed), .size = size});
}

void CallLog::add(const CallKey& key, Kept kept) {
  bytes_ += kept.size;
  if (kept.is_limited) in_memory_ += kept.size;
  kept_.emplace(key, std::move(kept));
}

Result<CallLog::Kept> CallLog::spill(ByteView packed) {
  if (options_.spill.empty()) {
    return no_space("log of calls: {} bytes are kept, and there is no folder for more",
                    in_memory_);
  }
  if (file_ == nullptr || end_ > kFileBytes) {
    file_ = HOLDFAST_TRY(env_.create_unnamed(options_.spill));
    end_ = 0;
  }
  HOLDFAST_TRY(file_->write_at(end_, packed));
  const auto size = static_cast<int64_t>(packed.size());
  return Kept{.file = file_, .offset = std::exchange(end_, end_ + size), .size = size};
}

void CallLog::forget(std::map<CallKey, Kept>::iterator at) {
  bytes_ -= at->second.size;
  if (at->second.is_limited) {
    in_memory_ -= at->second.size;
  } else if (at->second.file == nullptr && at->first.update != kStartUp) {
    received_ -= at->second.size;
  }
  kept_.erase(at);
  if (file_.use_count() == 1) file_.reset();  // the others have ended, too
}

Result<Bytes> CallLog::read(const Kept& kept) {
  if (kept.file == nullptr) return kept.bytes;
  Bytes bytes(static_cast<size_t>(kept.size));
  HOLDFAST_TRY(kept.file->read_at(kept.offset, bytes));
  return bytes;
}

Result<Bytes> CallLog::pack(const CallKey& key) const {
  MutexLock lock(mutex_);
  const auto found = kept_.find(key);
  if (found == kept_.end()) {
    return not_found("log of calls: no {}; expected what other ranks said", to_string(key));
  }
  return read(found->second);
}

Result<CallRecord> CallLog::find(const CallKey& key) const {
  const Bytes packed = HOLDFAST_TRY(pack(key));
  const Parsed parsed = HOLDFAST_TRY(parse_record(packed));
  if (parsed.key != key || parsed.whole.size() != packed.size()) {
    return corrupt("log of calls: {} stands in place of {}", to_string(parsed.key),
                   to_string(key));
  }
  return CallRecord{std::string(parsed.text), copy_of(parsed.bytes)};
}

Result<std::string> CallLog::pass_on(Transport& transport, int to, int from,
                                     const CallKey& key, std::string_view text,
                                     std::span<const ByteView> parts, Instant deadline) {
  const Bytes mine = pack_record(key, text, parts);
  Bytes theirs = HOLDFAST_TRY(swap_bytes(transport, to, from, mine, deadline));
  const Parsed parsed =
      HOLDFAST_TRY(parse_record(theirs).within(fmt::format("rank {}", from)));
  CallKey expected = key;
  expected.from = expected.to = from;
  if (parsed.key != expected || parsed.whole.size() != theirs.size()) {
    return corrupt("log of calls: rank {} passes on {}; expected {}", from,
                   to_string(parsed.key), to_string(expected));
  }
  std::string said(parsed.text);
  MutexLock lock(mutex_);
  Result<void> kept = keep(expected, std::move(theirs));
  if (!kept.ok()) hole_ = std::max(hole_, key.update);
  HOLDFAST_TRY(std::move(kept));
  return said;
}

void CallLog::drop_through(int64_t update) {
  MutexLock lock(mutex_);
  for (auto at = kept_.begin(); at != kept_.end();) {
    const auto next = std::next(at);
    if (at->first.update > update) break;
    if (at->first.update != kStartUp) forget(at);
    at = next;
  }
}

void CallLog::clear() {
  MutexLock lock(mutex_);
  kept_.clear();
  file_.reset();
  bytes_ = in_memory_ = received_ = 0;
  hole_ = kStartUp;
}

int64_t CallLog::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

int64_t CallLog::bytes_in_memory() const {
  MutexLock lock(mutex_);
  return in_memory_;
}

int64_t CallLog::hole() const {
  MutexLock lock(mutex_);
  return hole_;
}

Result<void> CallLog::take(ByteView packed) { return take(packed, nullptr); }

Result<void> CallLog::take(ByteView packed, const Wanted* wanted) {
  while (!packed.empty()) {
    const Parsed parsed = HOLDFAST_TRY(parse_record(packed));
    packed = packed.subspan(parsed.whole.size());
    if (wanted != nullptr && !is_wanted(parsed.key, *wanted)) {
      return corrupt("log of calls: {}; expected messages to rank {} of updates {} to {}",
                     to_string(parsed.key), wanted->to, wanted->after + 1,
                     wanted->through);
    }
    MutexLock lock(mutex_);
    if (const auto old = kept_.find(parsed.key); old != kept_.end()) {
      const Bytes known = HOLDFAST_TRY(read(old->second));
      if (std::ranges::equal(known, parsed.whole)) continue;
      return conflict("log of calls: two ranks have different records of {}",
                      to_string(parsed.key));
    }
    if (wanted != nullptr) {
      keep_received(parsed.key, copy_of(parsed.whole));
    } else {
      HOLDFAST_TRY(keep(parsed.key, copy_of(parsed.whole)));
    }
  }
  return {};
}

// Keys are copied first, because a record may be dropped while others are on their way.
Result<void> CallLog::send_to(Transport& transport, int receiver, const Wanted& wanted,
                              Instant deadline) const {
  std::vector<CallKey> keys;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, kept] : kept_) {
      if (is_wanted(key, wanted)) keys.push_back(key);
    }
  }
  Bytes message;
  const auto flush = [&]() -> Result<void> {
    for (ByteView left = message; !left.empty();) {
      const size_t size = std::min<size_t>(kMessageBytes, left.size());
      HOLDFAST_TRY(transport.send(receiver, kCallLogTag, left.first(size), deadline));
      left = left.subspan(size);
    }
    message.clear();
    return {};
  };
  for (const CallKey& key : keys) {
    const Bytes packed = HOLDFAST_TRY(pack(key));
    append(packed, message);
    if (std::ssize(message) >= kMessageBytes) HOLDFAST_TRY(flush());
  }
  HOLDFAST_TRY(flush());
  return transport.send(receiver, kCallLogTag, {}, deadline);  // the end
}

Result<void> CallLog::receive_from(Transport& transport, int from, const Wanted& wanted,
                                   Instant deadline) {
  Bytes arrived;
  while (true) {
    const Bytes message = HOLDFAST_TRY(transport.recv(from, kCallLogTag, deadline));
    append(message, arrived);
    const size_t whole = message.empty() ? arrived.size() : size_of_whole_records(arrived);
    HOLDFAST_TRY(take(ByteView(arrived).first(whole), &wanted)
                     .within(fmt::format("rank {}", from)));
    arrived.erase(arrived.begin(), arrived.begin() + static_cast<ptrdiff_t>(whole));
    if (message.empty()) return {};
  }
}

}  // namespace holdfast

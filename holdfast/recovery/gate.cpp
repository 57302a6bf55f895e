#include "holdfast/recovery/gate.h"

#include <algorithm>
#include <utility>

#include "holdfast/checkpoint/wire_tags.h"
#include "holdfast/recovery/buddies.h"

namespace holdfast {
namespace {

// interrupt() cannot wake a thread that waits inside the transport. So a wait is cut
// into pieces of this length; a message still ends it at once.
constexpr Duration kSlice = std::chrono::milliseconds(10);
constexpr size_t kHeaderBytes = 32;

// Grows with every record that a rank sends, also if it is sent by a replacement.
std::pair<int64_t, int64_t> age_of(const auto& header) {
  return {header.generation, header.serial};
}

void put(int64_t value, Bytes& bytes, size_t place) {
  store_little_endian(static_cast<uint64_t>(value), ByteSpan(bytes).subspan(place));
}

int64_t get(ByteView bytes, size_t place) {
  return static_cast<int64_t>(load_little_endian<uint64_t>(bytes.subspan(place)));
}

}  // namespace

Gate::Gate(Env& env, Transport& transport, std::vector<int> hosts)
    : env_(env), transport_(transport) {
  if (hosts.empty()) hosts.resize(static_cast<size_t>(transport.size()));
  HOLDFAST_CHECK(std::ssize(hosts) == transport.size(), "{} hosts for {} ranks",
                 hosts.size(), transport.size());
  const std::vector<int> buddies = choose_buddies(hosts);
  buddy_ = buddies[static_cast<size_t>(transport.rank())];
  peer_ =
      static_cast<int>(std::ranges::find(buddies, transport.rank()) - buddies.begin());
}

int64_t Gate::generation() const {
  MutexLock lock(mutex_);
  return generation_;
}

int64_t Gate::committed() const {
  MutexLock lock(mutex_);
  return committed_;
}

int64_t Gate::ready() const {
  MutexLock lock(mutex_);
  return ready_;
}

void Gate::interrupt(std::optional<int64_t> generation) {
  MutexLock lock(mutex_);
  interrupted_ = std::max(interrupted_, generation.value_or(generation_));
}

Result<void> Gate::check_open() const {
  MutexLock lock(mutex_);
  return check_open_locked();
}

Result<void> Gate::check_open_locked() const {
  if (interrupted_ < generation_) return {};
  return unavailable("gate: generation {} was interrupted, because a rank was lost",
                     generation_);
}

Result<void> Gate::begin(int64_t generation, int64_t update, ByteView record,
                         Instant deadline) {
  {
    MutexLock lock(mutex_);
    if (generation < generation_ || (used_ && generation == generation_)) {
      return invalid("gate: begin of generation {}; expected one after generation {}",
                     generation, generation_);
    }
    generation_ = generation;
    committed_ = ready_ = update;
    std::erase_if(kept_, [&](const auto& kept) { return kept.first != update; });
  }
  used_ = true;
  Result<void> met = meet(update, record, true, deadline);
  failed_ = !met.ok();
  return std::move(met).within("gate");
}

Result<void> Gate::pass(int64_t update, ByteView record, Instant deadline) {
  HOLDFAST_TRY(enter(update));
  used_ = true;
  Result<void> met = meet(update, record, false, deadline);
  if (met.ok()) {
    MutexLock lock(mutex_);
    met = check_open_locked();
    if (met.ok()) {
      committed_ = update;
      std::erase_if(kept_, [&](const auto& kept) { return kept.first < update - 1; });
      return {};
    }
  }
  failed_ = true;
  return std::move(met).within(fmt::format("gate of update {}", update));
}

Result<void> Gate::enter(int64_t update) {
  MutexLock lock(mutex_);
  HOLDFAST_TRY(check_open_locked());
  if (failed_) {
    return unavailable(
        "gate: it has failed in generation {}; expected a new generation", generation_);
  }
  if (update == committed_ + 1) return {};
  return invalid("gate: pass of update {}; expected update {}", update, committed_ + 1);
}

Result<void> Gate::meet(int64_t update, ByteView record, bool refreshed,
                        Instant deadline) {
  const int size = transport_.size(), rank = transport_.rank();
  Header header = header_for(update);
  const Bytes word = encode(header, {});
  early_.clear();
  if (size > 1) {
    header.serial = ++sent_;
    header.refreshed = refreshed;
    HOLDFAST_TRY(send(buddy_, kRecordTag, encode(header, record), deadline));
    HOLDFAST_TRY(await_record(update, deadline));
    take_later();
  }
  {
    MutexLock lock(mutex_);
    HOLDFAST_TRY(check_open_locked());
    ready_ = update;
  }
  // A rank hears another one in at most one round, because the distances are different
  // and smaller than the number of ranks. So the words need no number of the round.
  for (int far = 1; far < size; far *= 2) {
    HOLDFAST_TRY(send((rank + far) % size, kGateTag, word, deadline));
    HOLDFAST_TRY(await_word((rank - far + size) % size, update, deadline));
  }
  return {};
}

Result<void> Gate::send(int to, Tag tag, ByteView message, Instant deadline) {
  for (Duration wait{};; wait = kSlice) {
    HOLDFAST_TRY(check_open());
    Result<void> sent =
        transport_.send(to, tag, message, std::min(deadline, env_.now() + wait));
    const bool again = !sent.ok() && sent.error().code() == ErrorCode::kTimeout &&
                       env_.now() < deadline;
    if (!again) return sent;
    // Two long records are more than the transport keeps for a rank, and the other
    // ranks are in this loop, too: one of them has to receive.
    for (const Header& header : take_records(Instant::min())) early_.push_back(header);
  }
}

Result<std::optional<Gate::Kept>> Gate::receive(int from, Tag tag, Instant deadline) {
  HOLDFAST_TRY(check_open());
  const Result<Bytes> message =
      transport_.recv(from, tag, std::min(deadline, env_.now() + kSlice));
  if (message.ok()) return std::optional(HOLDFAST_TRY(decode(*message, from)));
  const bool again =
      message.error().code() == ErrorCode::kTimeout && env_.now() < deadline;
  return again ? Result<std::optional<Kept>>(std::optional<Kept>()) : message.error();
}

// Another thread may take the record out of the transport in record_of_peer(), so each
// turn looks at the kept ones first.
Result<void> Gate::await_record(int64_t update, Instant deadline) {
  while (!has_record(update)) {
    Header header;
    if (!early_.empty()) {
      header = early_.front();
      early_.pop_front();
    } else {
      std::optional<Kept> record = HOLDFAST_TRY(receive(peer_, kRecordTag, deadline));
      if (!record.has_value()) continue;
      header = record->header;
      keep(*std::move(record));
    }
    // A refreshed record of an older update was sent after that update. Any other
    // record is made at a gate, and must be of the same gate.
    if (header.generation < header_for(update).generation || has_record(update) ||
        (header.refreshed && header.update < update)) {
      continue;
    }
    return invalid(
        "rank {}: is at update {} in generation {}; expected update {} as on rank {}",
        peer_, header.update, header.generation, update, transport_.rank());
  }
  return {};
}

Result<void> Gate::await_word(int from, int64_t update, Instant deadline) {
  const int64_t generation = header_for(update).generation;
  while (true) {
    const std::optional<Kept> word = HOLDFAST_TRY(receive(from, kGateTag, deadline));
    if (!word.has_value() || word->header.generation < generation) continue;
    if (word->header.update == update && word->header.generation == generation) {
      return {};
    }
    return invalid(
        "rank {}: is at update {} in generation {}; expected update {} in generation "
        "{} "
        "as on rank {}",
        from, word->header.update, word->header.generation, update, generation,
        transport_.rank());
  }
}

// True if the peer has sent its record of this update in this generation.
bool Gate::has_record(int64_t update) const {
  MutexLock lock(mutex_);
  const auto found = kept_.find(update);
  return found != kept_.end() && found->second.header.generation == generation_;
}

// Two threads may receive two records and come here in the other order, so the number
// decides which one is newer.
void Gate::keep(Kept record) {
  MutexLock lock(mutex_);
  if (record.header.generation < generation_) return;
  Kept& kept = kept_[record.header.update];
  if (age_of(record.header) > age_of(kept.header)) kept = std::move(record);
}

Result<void> Gate::refresh(int64_t update, ByteView record) {
  if (update != committed()) {
    return invalid("gate: refresh of update {}; expected update {}", update,
                   committed());
  }
  if (transport_.size() == 1) return {};
  Header header = header_for(update);
  header.serial = ++sent_;
  header.refreshed = true;
  Result<void> sent =
      transport_.send(buddy_, kRecordTag, encode(header, record), env_.now());
  if (!sent.ok() && sent.error().code() == ErrorCode::kTimeout) {
    const Bytes told = encode(header, {});
    HOLDFAST_TRY(transport_.send(buddy_, kLaterRecordTag, told, env_.now()));
  }
  return std::move(sent).within("gate: refresh");
}

Result<void> Gate::forward(int64_t update) {
  MutexLock lock(mutex_);
  if (update != committed_ && update != ready_) {
    return invalid("gate: forward to update {}; expected update {}, which is ready",
                   update, ready_);
  }
  committed_ = update;
  ready_ = std::max(ready_, update);
  return {};
}

std::vector<Gate::Header> Gate::take_records(Instant deadline) {
  std::vector<Header> taken;
  while (true) {
    const Result<Bytes> message = transport_.recv(peer_, kRecordTag, deadline);
    if (!message.ok()) return taken;
    Result<Kept> record = decode(*message, peer_);
    if (!record.ok()) continue;
    taken.push_back(record->header);
    keep(*std::move(record));
  }
}

void Gate::take_later() {
  while (true) {
    const Result<Bytes> message = transport_.recv(peer_, kLaterRecordTag, env_.now());
    if (!message.ok()) return;
    const Result<Kept> later = decode(*message, peer_);
    if (!later.ok()) continue;
    MutexLock lock(mutex_);
    if (age_of(later->header) > age_of(later_)) later_ = later->header;
  }
}

std::optional<KeptRecord> Gate::record_of_peer(int64_t update, Instant deadline) {
  if (transport_.size() == 1) return std::nullopt;
  static_cast<void>(take_records(deadline));
  take_later();
  MutexLock lock(mutex_);
  const auto found = kept_.find(update);
  if (found == kept_.end()) return std::nullopt;
  const Header& header = found->second.header;
  const bool is_old = later_.update == update && age_of(later_) > age_of(header);
  return KeptRecord{.update = update,
                    .bytes = found->second.bytes,
                    .refreshed = header.refreshed && !is_old};
}

Gate::Header Gate::header_for(int64_t update) const {
  return {.generation = generation(), .update = update};
}

Bytes Gate::encode(const Header& header, ByteView record) {
  Bytes bytes(kHeaderBytes);
  put(header.generation, bytes, 0);
  put(header.update, bytes, 8);
  put(header.serial, bytes, 16);
  put(header.refreshed ? 1 : 0, bytes, 24);
  bytes.insert(bytes.end(), record.begin(), record.end());
  return bytes;
}

Result<Gate::Kept> Gate::decode(ByteView message, int from) {
  if (message.size() < kHeaderBytes) {
    return corrupt("rank {}: a message of {} bytes; expected {} or more", from,
                   message.size(), kHeaderBytes);
  }
  return Kept{.header = {.generation = get(message, 0),
                         .update = get(message, 8),
                         .serial = get(message, 16),
                         .refreshed = get(message, 24) != 0},
              .bytes = copy_of(message.subspan(kHeaderBytes))};
}

}  // namespace holdfast

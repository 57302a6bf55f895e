#include "holdfast/exchange/stream_threads.h"

#include <algorithm>

#include "holdfast/exchange/move_pieces.h"
#include "holdfast/exchange/shared_ring.h"

namespace holdfast {
namespace {

constexpr uint64_t kRefusal = UINT64_MAX;
constexpr Duration kGrantWait = std::chrono::milliseconds(50);
constexpr size_t kPartSealBytes = 2 * sizeof(uint64_t);

Bytes encode_seals(const std::vector<Seal>& seals) {
  Bytes said(seals.size() * kPartSealBytes);
  ByteSpan rest = said;
  for (const Seal& seal : seals) {
    store_little_endian(seal.lanes[0], rest);
    store_little_endian(seal.lanes[1], rest.subspan(sizeof(uint64_t)));
    rest = rest.subspan(kPartSealBytes);
  }
  return said;
}

// The buffers that a carrier has at the sender's side and at the receiver's.
int64_t buffer_bytes(Carrier carrier, bool sender) {
  if (carrier == Carrier::kDirect) return 0;
  if (carrier == Carrier::kTransport) return int64_t{1} << 20;
  return sender ? SharedRing::kSlotBytes * SharedRing::kSlots : 0;
}

}  // namespace

OldPieces::OldPieces(const LocalPieces& old, const OwnMoves& moves,
                     PieceStorage& storage, MemoryCount& memory, bool windowed)
    : old_(old),
      storage_(storage),
      memory_(memory),
      windowed_(windowed),
      readers_(moves.readers),
      kept_(old.size()),
      released_(old.size()) {
  for (uint32_t& count : readers_) ++count;
  for (const NewPiece& piece : moves.fresh) {
    if (piece.kept != kNothing) kept_[piece.kept] = true;
  }
}

void OldPieces::finish_reader(uint32_t number) {
  MutexLock lock(mutex_);
  if (--readers_[number] > 0 || !windowed_ || kept_[number]) return;
  released_[number] = true;
  storage_.release(old_[number]);
  memory_.add(-old_[number].bytes());
}

std::vector<bool> OldPieces::released() const {
  MutexLock lock(mutex_);
  return released_;
}

// An empty message is no window and no offer, and the refusal is no answer to one: the
// other side gives up.
void refuse_stream(const PairLink& link) {
  Bytes refusal(sizeof(kRefusal));
  store_little_endian(kRefusal, ByteSpan(refusal));
  static_cast<void>(link.transport->send(link.peer, link.tag, {}, link.deadline));
  static_cast<void>(
      link.transport->send(link.peer, link.tag + kBackwards, refusal, link.deadline));
}

Result<void> StreamSender::run() {
  const std::unique_ptr<Outlet> outlet = HOLDFAST_TRY(open_outlet(link_, stream_));
  carrier_ = outlet->carrier();
  const int64_t buffers = buffer_bytes(carrier_, true);
  work_.memory->add(buffers);
  const Result<void> sent = send_all(*outlet);
  if (!sent.ok()) outlet->give_up();
  work_.memory->add(-buffers);
  return sent;
}

Result<void> StreamSender::send_all(Outlet& outlet) {
  std::vector<Seal> seals(work_.options->seals ? stream_.parts().size() : 0);
  for (int64_t at = 0, end = 0; at < stream_.bytes(); at = end) {
    end = stream_.window_end(at, outlet.window_bytes());
    HOLDFAST_TRY(wait_for_grant(end));
    HOLDFAST_TRY(wait_for_arrivals(at, end));
    if (work_.progress->failed()) {
      return unavailable("rank {}: has failed", link_.transport->rank());
    }
    const ByteView window = HOLDFAST_TRY(outlet.send(stream_, at, end - at));
    sent_ = end;
    if (work_.options->seals) stream_.add_seals(at, window, seals);
    const uint32_t lot = stream_.parts()[stream_.part_at(at)].lot;
    if (work_.options->windowed && end == stream_.end_of_lots(lot + 1)) {
      HOLDFAST_TRY(outlet.flush());
      finish_parts(end);
    }
  }
  HOLDFAST_TRY(outlet.flush());
  finish_parts(stream_.bytes());
  if (!work_.options->seals) return {};
  return link_.transport->send(link_.peer, link_.tag, encode_seals(seals),
                               link_.deadline);
}

Result<void> StreamSender::wait_for_grant(int64_t end) {
  while (granted_ < end) {
    const Instant soon = std::min(link_.deadline, link_.env->now() + kGrantWait);
    const Result<Bytes> said =
        link_.transport->recv(link_.peer, link_.tag + kBackwards, soon);
    if (!said.ok() && said.error().code() == ErrorCode::kTimeout) {
      HOLDFAST_TRY(check_link(link_));
      continue;
    }
    if (!said.ok()) return said.error();
    if (said->size() != sizeof(uint64_t)) {
      return corrupt("rank {}: a grant of {} bytes; expected {}", link_.peer,
                     said->size(), sizeof(uint64_t));
    }
    const auto limit = load_little_endian<uint64_t>(*said);
    if (limit == kRefusal) {
      return unavailable("rank {}: could not receive all", link_.peer);
    }
    granted_ = std::max(granted_, static_cast<int64_t>(limit));
  }
  return {};
}

Result<void> StreamSender::wait_for_arrivals(int64_t first, int64_t end) {
  const std::vector<PairStream::Part>& parts = stream_.parts();
  for (size_t p = stream_.part_at(first); p < parts.size() && parts[p].first < end;
       ++p) {
    if (parts[p].arrival == kNothing) continue;
    HOLDFAST_TRY(work_.progress->wait_for_arrival(
        parts[p].arrival, std::min(end, parts[p].end()) - parts[p].first));
  }
  return {};
}

void StreamSender::finish_parts(int64_t end) {
  const std::vector<PairStream::Part>& parts = stream_.parts();
  for (; finished_ < parts.size() && parts[finished_].end() <= end; ++finished_) {
    const PairStream::Part& part = parts[finished_];
    if (part.arrival == kNothing) work_.old->finish_reader(part.held);
    work_.progress->finish_work(part.lot);
  }
}

Result<void> StreamReceiver::run() {
  Result<std::unique_ptr<Inlet>> inlet = open_inlet(link_);
  if (!inlet.ok()) {
    static_cast<void>(send_grant(kRefusal));
    return inlet.error();
  }
  carrier_ = (*inlet)->carrier();
  const int64_t buffers = buffer_bytes(carrier_, false);
  work_.memory->add(buffers);
  const Result<void> received = receive_all(**inlet);
  work_.memory->add(-buffers);
  return received;
}

// Fails at once if the carrier fails. If this rank fails, the rest is dropped.
Result<void> StreamReceiver::receive_all(Inlet& inlet) {
  Result<void> own;
  while (received_ < stream_.bytes()) {
    own = work_.progress->outcome();
    if (own.ok()) own = grant_from(received_);
    if (!own.ok()) break;
    const int64_t at = received_;
    const int64_t end = stream_.window_end(at, inlet.window_bytes());
    HOLDFAST_TRY(inlet.receive(stream_, at, end - at, *work_.writer, own));
    received_ = end;
    if (own.ok()) own = note_arrivals(at, end);
    if (!own.ok()) break;
  }
  if (!own.ok()) {
    work_.progress->fail(own.error());
    HOLDFAST_TRY(drop_rest(inlet));
  }
  if (work_.options->seals) {
    said_ = HOLDFAST_TRY(link_.transport->recv(link_.peer, link_.tag, link_.deadline));
  }
  return own;
}

// The sender must not be left waiting, and must not fail for another reason than this
// rank.
Result<void> StreamReceiver::drop_rest(Inlet& inlet) {
  static_cast<void>(send_grant(kRefusal));
  for (int64_t at = received_, end = 0; at < stream_.bytes(); at = end) {
    end = stream_.window_end(at, inlet.window_bytes());
    HOLDFAST_TRY(inlet.skip(end - at));
  }
  return {};
}

Result<void> StreamReceiver::grant_from(int64_t at) {
  // Windows of the other carriers do not wait anywhere but in the sender's own memory or
  // in the ring.
  const bool limited = carrier_ == Carrier::kTransport;
  if (limited && granted_ - at > work_.quota / 2) return {};
  if (granted_ == at) {
    HOLDFAST_TRY(
        work_.progress->wait_until_up(stream_.parts()[stream_.part_at(at)].lot));
  }
  const int64_t up = stream_.end_of_lots(work_.progress->up());
  const int64_t want = limited ? std::min(up, at + work_.quota) : up;
  if (want <= granted_) return {};
  granted_ = want;
  return send_grant(static_cast<uint64_t>(want));
}

Result<void> StreamReceiver::send_grant(uint64_t limit) {
  Bytes said(sizeof(limit));
  store_little_endian(limit, ByteSpan(said));
  return link_.transport->send(link_.peer, link_.tag + kBackwards, said, link_.deadline);
}

Result<void> StreamReceiver::note_arrivals(int64_t first, int64_t end) {
  const std::vector<PairStream::Part>& parts = stream_.parts();
  for (size_t p = stream_.part_at(first); p < parts.size() && parts[p].first < end;
       ++p) {
    const PairStream::Part& part = parts[p];
    const bool whole = part.end() <= end;
    const bool on_device = part.piece.device != nullptr;
    if (part.arrival != kNothing && (whole || !on_device)) {
      // A device has the bytes only when the writer has finished.
      if (on_device) HOLDFAST_TRY(work_.writer->finish());
      work_.progress->arrive(part.arrival, std::min(end, part.end()) - part.first);
    }
  }
  for (; finished_ < parts.size() && parts[finished_].end() <= end; ++finished_) {
    work_.progress->finish_work(parts[finished_].lot);
  }
  return work_.options->seals ? seal_until(end) : Result<void>();
}

// Seals the boxes in the host's memory that are complete up to this byte, while their
// last bytes are in the processor's cache.
Result<void> StreamReceiver::seal_until(int64_t end) {
  for (; sealed_ < own_.size() && stream_.parts()[sealed_].end() <= end; ++sealed_) {
    const LocalPiece& piece = stream_.parts()[sealed_].piece;
    if (piece.device == nullptr) own_[sealed_] = HOLDFAST_TRY(seal_of(piece));
  }
  return {};
}

// Seals the boxes that are on devices, all at once.
Result<void> StreamReceiver::seal_devices() {
  std::vector<LocalPiece> pieces;
  std::vector<size_t> numbers;
  for (size_t p = 0; p < own_.size(); ++p) {
    if (stream_.parts()[p].piece.device == nullptr) continue;
    pieces.push_back(stream_.parts()[p].piece);
    numbers.push_back(p);
  }
  const std::vector<Seal> seals = HOLDFAST_TRY(seals_of(pieces));
  for (size_t i = 0; i < numbers.size(); ++i) own_[numbers[i]] = seals[i];
  return {};
}

Result<void> StreamReceiver::check_seals() {
  if (!work_.options->seals) return {};
  HOLDFAST_TRY(seal_devices());
  const Bytes expected = encode_seals(own_);
  if (said_.size() != expected.size()) {
    return corrupt("rank {}: sent {} bytes of seals; expected {}", link_.peer,
                   said_.size(), expected.size());
  }
  for (size_t p = 0; p < own_.size(); ++p) {
    const auto seal = [&](const Bytes& of) {
      return ByteView(of).subspan(p * kPartSealBytes, kPartSealBytes);
    };
    if (!std::ranges::equal(seal(said_), seal(expected))) return differs(p);
  }
  return {};
}

Error StreamReceiver::differs(size_t part) const {
  const LocalPiece& piece = stream_.parts()[part].piece;
  return corrupt(
      "{}: the seal of box {} at rank {} is not the one that rank {} sent; expected "
      "equal ones",
      piece.tensor->name, to_string(piece.box), link_.transport->rank(), link_.peer);
}

}  // namespace holdfast

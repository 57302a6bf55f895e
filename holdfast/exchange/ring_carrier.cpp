// Carriers between two processes of one machine, through memory that they share. The
// transport carries the address of that memory and the answer to it, and tells whether
// the other side is still alive.
#include "holdfast/exchange/carrier.h"
#include "holdfast/exchange/shared_ring.h"

namespace holdfast {
namespace {

constexpr std::string_view kNoRing = "none";
constexpr std::string_view kAccepted = "accepted";

// Fails if the deadline has passed or the other rank is gone. Nobody sends with this
// tag, so receiving fails with kTimeout as long as the other rank is alive.
Result<void> check_peer(const PairLink& link) {
  const Instant now = link.env->now();
  const Result<Bytes> said = link.transport->recv(link.peer, link.tag + 1, now);
  if (!said.ok() && said.error().code() != ErrorCode::kTimeout) return said.error();
  if (now < link.deadline) return {};
  return timed_out("rank {}: no answer from rank {} in time", link.transport->rank(),
                   link.peer);
}

class RingOutlet : public Outlet {
 public:
  RingOutlet(const PairLink& link, std::unique_ptr<SharedRing> ring)
      : link_(link), ring_(std::move(ring)) {}

  int64_t window_bytes() const override { return SharedRing::kSlotBytes; }
  bool shares_memory() const override { return true; }
  bool takes_views() const override { return false; }
  Result<ByteSpan> room(size_t size) override {
    while (true) {
      const ByteSpan slot = ring_->free_slot();
      if (!slot.empty()) return slot.first(size);
      HOLDFAST_TRY(check_peer(link_));
    }
  }
  Result<void> send(ByteView) override {
    ring_->publish();
    return {};
  }
  void give_up() override { ring_->give_up(); }

 private:
  const PairLink link_;
  const std::unique_ptr<SharedRing> ring_;
};

class RingInlet : public Inlet {
 public:
  RingInlet(const PairLink& link, std::unique_ptr<SharedRing> ring)
      : link_(link), ring_(std::move(ring)) {}

  int64_t window_bytes() const override { return SharedRing::kSlotBytes; }
  bool shares_memory() const override { return true; }
  Result<ByteView> receive(size_t size, ByteSpan) override {
    if (holds_slot_) ring_->release();
    holds_slot_ = false;
    while (true) {
      const ByteView slot = ring_->filled_slot();
      holds_slot_ = !slot.empty();
      if (holds_slot_) return slot.first(size);
      if (ring_->given_up()) return gave_up(link_);
      HOLDFAST_TRY(check_peer(link_));
    }
  }

 private:
  const PairLink link_;
  const std::unique_ptr<SharedRing> ring_;
  bool holds_slot_ = false;
};

}  // namespace

Error gave_up(const PairLink& link) {
  return unavailable("rank {}: could not send all", link.peer);
}

Result<std::unique_ptr<Outlet>> open_outlet(const PairLink& link) {
  if (!link.one_machine) return outlet_over_transport(link);
  Result<std::unique_ptr<SharedRing>> ring = SharedRing::create(*link.env);
  const std::string address = ring.ok() ? (*ring)->address() : std::string(kNoRing);
  HOLDFAST_TRY(
      link.transport->send(link.peer, link.tag, bytes_of(address), link.deadline));
  if (!ring.ok()) return outlet_over_transport(link);
  const Bytes answer =
      HOLDFAST_TRY(link.transport->recv(link.peer, link.tag, link.deadline));
  (*ring)->close_descriptor();
  if (text_of(answer) != kAccepted) return outlet_over_transport(link);
  return std::unique_ptr<Outlet>(std::make_unique<RingOutlet>(link, *std::move(ring)));
}

Result<std::unique_ptr<Inlet>> open_inlet(const PairLink& link) {
  if (!link.one_machine) return inlet_over_transport(link);
  const Bytes address =
      HOLDFAST_TRY(link.transport->recv(link.peer, link.tag, link.deadline));
  if (text_of(address) == kNoRing) return inlet_over_transport(link);
  Result<std::unique_ptr<SharedRing>> ring = SharedRing::open(text_of(address));
  const std::string_view answer = ring.ok() ? kAccepted : kNoRing;
  HOLDFAST_TRY(
      link.transport->send(link.peer, link.tag, bytes_of(answer), link.deadline));
  if (!ring.ok()) return inlet_over_transport(link);
  return std::unique_ptr<Inlet>(std::make_unique<RingInlet>(link, *std::move(ring)));
}

}  // namespace holdfast

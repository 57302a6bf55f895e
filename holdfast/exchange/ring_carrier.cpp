// Carriers between two processes of one machine, through memory that they share. The
// transport carries the address of that memory and the answer to it, and tells whether
// the other side is still alive.
#include "holdfast/exchange/carrier.h"
#include "holdfast/exchange/shared_ring.h"

namespace holdfast {
namespace {

class RingOutlet : public Outlet {
 public:
  RingOutlet(const PairLink& link, std::unique_ptr<SharedRing> ring)
      : link_(link), ring_(std::move(ring)) {}

  Carrier carrier() const override { return Carrier::kRing; }
  int64_t window_bytes() const override { return SharedRing::kSlotBytes; }
  Result<ByteView> send(const PairStream& stream, int64_t first,
                        int64_t size) override {
    // An answer to the offer means that the receiver has the memory.
    ring_->close_descriptor();
    const ByteSpan slot = HOLDFAST_TRY(free_slot()).first(static_cast<size_t>(size));
    HOLDFAST_TRY(stream.read(first, slot));
    ring_->publish();
    // The receiver does not write to the slot, and this side not before it is free.
    return ByteView(slot);
  }
  void give_up() override { ring_->give_up(); }

 private:
  Result<ByteSpan> free_slot() {
    while (true) {
      const ByteSpan slot = ring_->free_slot();
      if (!slot.empty()) return slot;
      HOLDFAST_TRY(check_link(link_));
    }
  }

  const PairLink link_;
  const std::unique_ptr<SharedRing> ring_;
};

class RingInlet : public Inlet {
 public:
  RingInlet(const PairLink& link, std::unique_ptr<SharedRing> ring)
      : link_(link), ring_(std::move(ring)) {}

  Carrier carrier() const override { return Carrier::kRing; }
  int64_t window_bytes() const override { return SharedRing::kSlotBytes; }
  Result<void> receive(const PairStream& stream, int64_t first, int64_t size,
                       PieceWriter& writer, Result<void>& put) override {
    const ByteView slot = HOLDFAST_TRY(filled_slot());
    put = stream.write(first, slot.first(static_cast<size_t>(size)), writer);
    ring_->release();
    return {};
  }
  Result<void> skip(int64_t) override {
    HOLDFAST_TRY(filled_slot());
    ring_->release();
    return {};
  }

 private:
  Result<ByteView> filled_slot() {
    while (true) {
      const ByteView slot = ring_->filled_slot();
      if (!slot.empty()) return slot;
      if (ring_->given_up()) return gave_up(link_);
      // A receiver whose rank has failed goes on until the sender gives up.
      PairLink link = link_;
      link.stopped = nullptr;
      HOLDFAST_TRY(check_link(link));
    }
  }

  const PairLink link_;
  const std::unique_ptr<SharedRing> ring_;
};

}  // namespace

Result<AddressedOutlet> outlet_over_ring(const PairLink& link) {
  std::unique_ptr<SharedRing> ring = HOLDFAST_TRY(SharedRing::create(*link.env));
  std::string address = ring->address();
  return AddressedOutlet{.outlet = std::make_unique<RingOutlet>(link, std::move(ring)),
                         .address = std::move(address)};
}

Result<std::unique_ptr<Inlet>> inlet_over_ring(const PairLink& link,
                                               std::string_view address) {
  std::unique_ptr<SharedRing> ring = HOLDFAST_TRY(SharedRing::open(address));
  return std::unique_ptr<Inlet>(std::make_unique<RingInlet>(link, std::move(ring)));
}

}  // namespace holdfast

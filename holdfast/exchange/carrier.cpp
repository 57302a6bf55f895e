#include "holdfast/exchange/carrier.h"

namespace holdfast {
namespace {

constexpr int64_t kMessage = int64_t{1} << 20;

class TransportOutlet : public Outlet {
 public:
  explicit TransportOutlet(const PairLink& link) : link_(link) {}

  int64_t window_bytes() const override { return kMessage; }
  bool shares_memory() const override { return false; }
  bool takes_views() const override { return true; }
  Result<ByteSpan> room(size_t size) override {
    buffer_.resize(size);
    return ByteSpan(buffer_);
  }
  Result<void> send(ByteView window) override {
    return link_.transport->send_in_place(link_.peer, link_.tag, window,
                                          link_.deadline);
  }
  // A window is never empty, so an empty message says that no more come.
  void give_up() override {
    static_cast<void>(link_.transport->send(link_.peer, link_.tag, {}, link_.deadline));
  }

 private:
  const PairLink link_;
  Bytes buffer_;
};

class TransportInlet : public Inlet {
 public:
  explicit TransportInlet(const PairLink& link) : link_(link) {}

  int64_t window_bytes() const override { return kMessage; }
  bool shares_memory() const override { return false; }
  Result<ByteView> receive(size_t size, ByteSpan place) override {
    if (place.empty()) {
      buffer_.resize(size);
      place = buffer_;
    }
    const size_t got = HOLDFAST_TRY(
        link_.transport->recv_into(link_.peer, link_.tag, place, link_.deadline));
    if (got == size) return ByteView(place);
    if (got == 0) return gave_up(link_);
    return corrupt("rank {}: sent a window of {} bytes; expected {}", link_.peer, got,
                   size);
  }

 private:
  const PairLink link_;
  Bytes buffer_;
};

}  // namespace

std::unique_ptr<Outlet> outlet_over_transport(const PairLink& link) {
  return std::make_unique<TransportOutlet>(link);
}

std::unique_ptr<Inlet> inlet_over_transport(const PairLink& link) {
  return std::make_unique<TransportInlet>(link);
}

}  // namespace holdfast

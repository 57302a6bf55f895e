// Chooses the carrier of a pair of ranks, and carries windows as messages.
//
// The sender offers carriers, the best first, each by a message with its name and
// address; the receiver answers each offer. Ranks of two machines do not negotiate.
#include "holdfast/exchange/carrier.h"

#include <string>

namespace holdfast {
namespace {

constexpr int64_t kMessage = int64_t{1} << 20;
constexpr std::string_view kAccepted = "accepted";
constexpr std::string_view kRefused = "refused";

class TransportOutlet : public Outlet {
 public:
  explicit TransportOutlet(const PairLink& link) : link_(link) {}

  Carrier carrier() const override { return Carrier::kTransport; }
  int64_t window_bytes() const override { return kMessage; }
  Result<ByteView> send(const PairStream& stream, int64_t first,
                        int64_t size) override {
    const ByteView window = HOLDFAST_TRY(gathered(stream, first, size));
    HOLDFAST_TRY(link_.transport->send_in_place(link_.peer, link_.tag, window,
                                                link_.deadline));
    return window;
  }
  // A window is never empty, so an empty message says that no more come.
  void give_up() override {
    static_cast<void>(link_.transport->send(link_.peer, link_.tag, {}, link_.deadline));
  }

 private:
  Result<ByteView> gathered(const PairStream& stream, int64_t first, int64_t size) {
    if (const auto view = stream.view(first, size)) return ByteView(*view);
    buffer_.resize(static_cast<size_t>(size));
    HOLDFAST_TRY(stream.read(first, buffer_));
    return ByteView(buffer_);
  }

  const PairLink link_;
  Bytes buffer_;
};

class TransportInlet : public Inlet {
 public:
  explicit TransportInlet(const PairLink& link) : link_(link) {}

  Carrier carrier() const override { return Carrier::kTransport; }
  int64_t window_bytes() const override { return kMessage; }
  Result<void> receive(const PairStream& stream, int64_t first, int64_t size,
                       PieceWriter& writer, Result<void>& put) override {
    if (const auto place = stream.view(first, size)) return receive_into(*place);
    buffer_.resize(static_cast<size_t>(size));
    HOLDFAST_TRY(receive_into(buffer_));
    put = stream.write(first, buffer_, writer);
    return {};
  }
  Result<void> skip(int64_t size) override {
    buffer_.resize(static_cast<size_t>(size));
    return receive_into(buffer_);
  }

 private:
  Result<void> receive_into(ByteSpan place) {
    const size_t got = HOLDFAST_TRY(
        link_.transport->recv_into(link_.peer, link_.tag, place, link_.deadline));
    if (got == place.size()) return {};
    if (got == 0) return gave_up(link_);
    return corrupt("rank {}: sent a window of {} bytes; expected {}", link_.peer, got,
                   place.size());
  }

  const PairLink link_;
  Bytes buffer_;
};

// Offers a carrier. True if the receiver accepts it.
Result<bool> offer(const PairLink& link, Carrier carrier, std::string_view address) {
  const std::string said = fmt::format("{} {}", name_of(carrier), address);
  HOLDFAST_TRY(
      link.transport->send(link.peer, link.tag, bytes_of(said), link.deadline));
  const Bytes answer = HOLDFAST_TRY(
      link.transport->recv(link.peer, link.tag + kBackwards, link.deadline));
  if (text_of(answer) == kAccepted) return true;
  if (text_of(answer) == kRefused) return false;
  // A rank that has failed before answers something else.
  return unavailable("rank {}: could not receive all", link.peer);
}

// The inlet for an offer, if it can be made.
Result<std::unique_ptr<Inlet>> accept_offer(const PairLink& link, std::string_view said) {
  const size_t space = std::min(said.find(' '), said.size());
  const std::string_view name = said.substr(0, space);
  const std::string_view address = said.substr(std::min(space + 1, said.size()));
  if (name == name_of(Carrier::kDirect)) return direct_inlet(link, address);
  if (name == name_of(Carrier::kRing)) return inlet_over_ring(link, address);
  if (name == name_of(Carrier::kTransport)) return inlet_over_transport(link);
  return unsupported("rank {}: offers the carrier \"{}\"; expected one that is known",
                     link.peer, name);
}

}  // namespace

std::string_view name_of(Carrier carrier) {
  switch (carrier) {
    case Carrier::kDirect:
      return "direct";
    case Carrier::kRing:
      return "ring";
    case Carrier::kTransport:
      break;
  }
  return "transport";
}

std::unique_ptr<Outlet> outlet_over_transport(const PairLink& link) {
  return std::make_unique<TransportOutlet>(link);
}

std::unique_ptr<Inlet> inlet_over_transport(const PairLink& link) {
  return std::make_unique<TransportInlet>(link);
}

Error gave_up(const PairLink& link) {
  return unavailable("rank {}: has failed and sends no more; expected all its boxes",
                     link.peer);
}

Result<void> check_link(const PairLink& link) {
  const int rank = link.transport->rank();
  if (link.stopped != nullptr && link.stopped->load()) {
    return unavailable("rank {}: has failed", rank);
  }
  const Instant now = link.env->now();
  // Nobody sends with this tag, so receiving fails with kTimeout as long as the other
  // rank is alive.
  const Result<Bytes> said = link.transport->recv(link.peer, link.tag + 1, now);
  if (!said.ok() && said.error().code() != ErrorCode::kTimeout) return said.error();
  if (now < link.deadline) return {};
  return timed_out("rank {}: no answer from rank {} in time", rank, link.peer);
}

Result<std::unique_ptr<Outlet>> open_outlet(const PairLink& link,
                                            const PairStream& stream) {
  if (link.one_process) {
    AddressedOutlet made = direct_outlet(link, stream);
    if (HOLDFAST_TRY(offer(link, Carrier::kDirect, made.address))) {
      return std::move(made.outlet);
    }
  }
  if (link.one_machine) {
    Result<AddressedOutlet> made = outlet_over_ring(link);
    if (made.ok() && HOLDFAST_TRY(offer(link, Carrier::kRing, made->address))) {
      return std::move(made->outlet);
    }
  }
  if (link.one_process || link.one_machine) {
    HOLDFAST_TRY(offer(link, Carrier::kTransport, ""));
  }
  return outlet_over_transport(link);
}

Result<std::unique_ptr<Inlet>> open_inlet(const PairLink& link) {
  if (!link.one_process && !link.one_machine) return inlet_over_transport(link);
  while (true) {
    const Bytes said =
        HOLDFAST_TRY(link.transport->recv(link.peer, link.tag, link.deadline));
    // A sender that fails before it has offered anything gives up over the transport.
    if (said.empty()) return gave_up(link);
    Result<std::unique_ptr<Inlet>> inlet = accept_offer(link, text_of(said));
    const std::string_view answer = inlet.ok() ? kAccepted : kRefused;
    HOLDFAST_TRY(link.transport->send(link.peer, link.tag + kBackwards,
                                      bytes_of(answer), link.deadline));
    if (inlet.ok()) return inlet;
  }
}

}  // namespace holdfast

// Carriers bring the stream of a pair of ranks from the one to the other, window by
// window. The sender has an outlet, the receiver an inlet.
//
//   direct     both ranks are in one process: the receiver copies from the sender's
//              memory
//   ring       both are on one machine: through memory that they share (shared_ring.h)
//   transport  any two ranks: windows are messages
//
// Ranks try a carrier before they use it, because processes of one machine may be in
// containers that do not see each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"
#include "holdfast/env/env.h"
#include "holdfast/exchange/pair_stream.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

enum class Carrier : uint8_t { kDirect, kRing, kTransport };
inline constexpr int kCarriers = 3;
std::string_view name_of(Carrier carrier);  // "direct", "ring", "transport"

// What a carrier needs to know about the other rank. All calls fail with kTimeout when
// the deadline passes, and with kUnavailable if the other rank is gone.
struct PairLink {
  Env* env;
  Transport* transport;
  int peer;
  // Offers and windows have this tag. With tag + 1 nothing is sent. What goes from the
  // receiver to the sender has tag + kBackwards, because two ranks may have a stream in
  // each direction.
  Tag tag;
  Instant deadline;
  bool one_machine = false;  // both ranks may use shared memory
  bool one_process = false;  // both ranks may use each other's memory
  // If it becomes true, this rank has failed, and its waits end soon.
  const std::atomic<bool>* stopped = nullptr;
};

inline constexpr Tag kBackwards = 2;

class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual Carrier carrier() const = 0;
  // The most bytes of a window.
  virtual int64_t window_bytes() const = 0;
  // Sends a window. Returns its bytes, valid until the next call; nothing if the
  // receiver takes them from where they are.
  virtual Result<ByteView> send(const PairStream& stream, int64_t first,
                                int64_t size) = 0;
  // Returns when the memory of all windows that were sent may be changed.
  virtual Result<void> flush() { return {}; }
  // Tells the receiver that no more windows come, because this rank has failed. The
  // memory may be changed afterwards.
  virtual void give_up() = 0;
};

class Inlet {
 public:
  virtual ~Inlet() = default;
  virtual Carrier carrier() const = 0;
  virtual int64_t window_bytes() const = 0;
  // Waits for the next window and puts it into place. Fails if the window does not
  // come; `put` tells whether this rank could write it to its memory.
  virtual Result<void> receive(const PairStream& stream, int64_t first, int64_t size,
                               PieceWriter& writer, Result<void>& put) = 0;
  // Waits for the next window and drops it.
  virtual Result<void> skip(int64_t size) = 0;
};

// Make the best carrier that is possible for the two ranks. Both must call it, with the
// same values of one_machine and one_process. The streams must outlive the carriers.
Result<std::unique_ptr<Outlet>> open_outlet(const PairLink& link,
                                            const PairStream& stream);
Result<std::unique_ptr<Inlet>> open_inlet(const PairLink& link);

// The error of a receiver whose sender has failed.
Error gave_up(const PairLink& link);
// Fails if this rank has failed, the deadline has passed or the other rank is gone.
Result<void> check_link(const PairLink& link);

// The single carriers. The two sides of a direct or ring carrier find each other by the
// address that the outlet's maker returns.
std::unique_ptr<Outlet> outlet_over_transport(const PairLink& link);
std::unique_ptr<Inlet> inlet_over_transport(const PairLink& link);

struct AddressedOutlet {
  std::unique_ptr<Outlet> outlet;
  std::string address;
};
Result<AddressedOutlet> outlet_over_ring(const PairLink& link);
Result<std::unique_ptr<Inlet>> inlet_over_ring(const PairLink& link,
                                               std::string_view address);
AddressedOutlet direct_outlet(const PairLink& link, const PairStream& stream);
// Fails with kNotFound if the sender is not in this process.
Result<std::unique_ptr<Inlet>> direct_inlet(const PairLink& link,
                                            std::string_view address);

}  // namespace holdfast

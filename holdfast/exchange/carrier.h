// Carriers bring the stream of a pair of ranks from the one to the other, window by
// window. The sender has an outlet, the receiver an inlet.
#pragma once

#include <memory>

#include "holdfast/base/bytes.h"
#include "holdfast/env/env.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// What a carrier needs to know about the other rank. All calls fail with kTimeout when
// the deadline passes, and with kUnavailable if the other rank is gone.
struct PairLink {
  Env* env;
  Transport* transport;
  int peer;
  Tag tag;  // and the next one, with which nothing is sent
  Instant deadline;
  bool one_machine = false;  // both ranks may use shared memory
};

class Outlet {
 public:
  virtual ~Outlet() = default;
  // How many bytes each window has, but the last, which may have fewer.
  virtual int64_t window_bytes() const = 0;
  // True if the windows go through shared memory.
  virtual bool shares_memory() const = 0;
  // True if send() takes a window from any memory; false if only from that of room().
  virtual bool takes_views() const = 0;
  // Memory for the next window. Waits until there is some.
  virtual Result<ByteSpan> room(size_t size) = 0;
  // Sends the window. Afterwards its memory may be changed.
  virtual Result<void> send(ByteView window) = 0;
  // Tells the receiver that no more windows come, because this rank has failed.
  virtual void give_up() = 0;
};

class Inlet {
 public:
  virtual ~Inlet() = default;
  virtual bool shares_memory() const = 0;
  virtual int64_t window_bytes() const = 0;
  // Waits for the next window, which must have `size` bytes. The view is valid until
  // the next call. If `place` is not empty, the caller wants the window there; the
  // carrier may put it there and return `place`, or return other memory.
  virtual Result<ByteView> receive(size_t size, ByteSpan place) = 0;
};

// Make the carrier for the two ranks: through shared memory if they are on one machine
// and it gives them the memory, else over the transport. Both ranks must call it.
Result<std::unique_ptr<Outlet>> open_outlet(const PairLink& link);
Result<std::unique_ptr<Inlet>> open_inlet(const PairLink& link);

// The error of a receiver whose sender has failed.
Error gave_up(const PairLink& link);

// Carriers that use the messages of the transport.
std::unique_ptr<Outlet> outlet_over_transport(const PairLink& link);
std::unique_ptr<Inlet> inlet_over_transport(const PairLink& link);

}  // namespace holdfast

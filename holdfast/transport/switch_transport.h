// A Transport that passes all calls on to another one, which can be replaced: when lost
// ranks were replaced, a new transport connects the new set of processes, and the
// objects that hold a pointer to this one go on with it.
#pragma once

#include <memory>

#include "holdfast/base/mutex.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// Fails as the inner transport does. Safe from several threads, as transport.h says;
// replace() may be called at any time.
class SwitchTransport : public Transport {
 public:
  explicit SwitchTransport(std::shared_ptr<Transport> inner);

  // All later calls go to `inner`, which must have the same rank and size. Calls that
  // wait still wait in the old transport: close it before, then they end.
  void replace(std::shared_ptr<Transport> inner);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) override;
  Result<void> send_in_place(int to, Tag tag, ByteView bytes, Instant deadline) override;
  Result<Bytes> recv(int from, Tag tag, Instant deadline) override;
  Result<size_t> recv_into(int from, Tag tag, ByteSpan into, Instant deadline) override;
  Result<void> barrier(Instant deadline) override;
  Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) override;

 private:
  std::shared_ptr<Transport> inner() const;
  // The inner transport for a collective call, which tells the late watch of this one.
  std::shared_ptr<Transport> watched() const;

  const int rank_;
  const int size_;
  mutable Mutex mutex_;
  // Shared, because a call that waits in a transport keeps it alive after replace().
  std::shared_ptr<Transport> inner_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast

#include "holdfast/transport/switch_transport.h"

namespace holdfast {

SwitchTransport::SwitchTransport(std::shared_ptr<Transport> inner)
    : rank_(inner->rank()), size_(inner->size()), inner_(std::move(inner)) {}

void SwitchTransport::replace(std::shared_ptr<Transport> inner) {
  HOLDFAST_CHECK(inner->rank() == rank_ && inner->size() == size_,
                 "rank {} of {} replaces rank {} of {}", inner->rank(), inner->size(),
                 rank_, size_);
  MutexLock lock(mutex_);
  inner_.swap(inner);
}

std::shared_ptr<Transport> SwitchTransport::inner() const {
  MutexLock lock(mutex_);
  return inner_;
}

std::shared_ptr<Transport> SwitchTransport::watched() const {
  std::shared_ptr<Transport> now = inner();
  now->set_late_watch(late_watch());
  return now;
}

Result<void> SwitchTransport::send(int to, Tag tag, ByteView bytes, Instant deadline) {
  return inner()->send(to, tag, bytes, deadline);
}

Result<void> SwitchTransport::send_in_place(int to, Tag tag, ByteView bytes,
                                            Instant deadline) {
  return inner()->send_in_place(to, tag, bytes, deadline);
}

Result<size_t> SwitchTransport::recv_into(int from, Tag tag, ByteSpan into,
                                          Instant deadline) {
  return inner()->recv_into(from, tag, into, deadline);
}

Result<Bytes> SwitchTransport::recv(int from, Tag tag, Instant deadline) {
  return inner()->recv(from, tag, deadline);
}

Result<void> SwitchTransport::barrier(Instant deadline) {
  return watched()->barrier(deadline);
}

Result<std::vector<Bytes>> SwitchTransport::all_gather(ByteView bytes,
                                                       Instant deadline) {
  return watched()->all_gather(bytes, deadline);
}

}  // namespace holdfast

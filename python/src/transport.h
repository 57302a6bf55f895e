// A TcpTransport as Python holds it.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

#include "env.h"
#include "holdfast/transport/switch_transport.h"
#include "holdfast/transport/tcp_transport.h"

namespace holdfast::python {

// All calls need the GIL and release it while they wait. In a forked child get()
// throws, and let_go_in_child() closes the child's copies of the connections; the
// thread stays with the parent.
class HeldTransport {
 public:
  explicit HeldTransport(std::shared_ptr<TcpTransport> transport)
      : over_(std::make_unique<SwitchTransport>(transport)),
        transport_(std::move(transport)) {}
  ~HeldTransport() {
    if (::getpid() != process_) {
      static_cast<void>(over_.release());  // it keeps the transport alive for ever
      return;
    }
    const nb::gil_scoped_release unlocked;
    over_.reset();
    transport_.reset();
  }
  HeldTransport(const HeldTransport&) = delete;
  HeldTransport& operator=(const HeldTransport&) = delete;

  // The transport of this generation. A call holds the pointer while it runs, because
  // another thread may call replace(). Throws in a forked process.
  std::shared_ptr<TcpTransport> get() const {
    check_process();
    return transport_;
  }
  // The same for objects that stay for several generations. Throws in a forked process.
  SwitchTransport& over() const {
    check_process();
    return *over_;
  }
  // Closes the transport and goes on with that of `next`.
  void replace(const HeldTransport& next) {
    const auto old = get(), inner = next.get();
    if (inner->rank() != old->rank() || inner->size() != old->size()) {
      throw Raised(
          invalid("transport: rank {} of {} in place of rank {} of {}; expected "
                  "the same rank and size",
                  inner->rank(), inner->size(), old->rank(), old->size()));
    }
    if (inner == old) return;
    transport_ = inner;
    over_->replace(inner);
    const nb::gil_scoped_release unlocked;
    old->close();
  }
  // Called in the child after a fork. Does nothing in the parent.
  void let_go_in_child() {
    if (::getpid() != process_) transport_->close_in_child();
  }

 private:
  void check_process() const {
    if (::getpid() == process_) return;
    throw Raised(invalid(
        "transport: it belongs to process {}, and this is its child {}; expected "
        "a call from the process that opened it",
        process_, ::getpid()));
  }

  const pid_t process_ = ::getpid();
  std::unique_ptr<SwitchTransport> over_;
  // Shared with the switch, with calls that wait, and after replace() with the object
  // that it came from.
  std::shared_ptr<TcpTransport> transport_;
};

}  // namespace holdfast::python

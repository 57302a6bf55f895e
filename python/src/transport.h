// A TcpTransport as Python holds it.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

#include "env.h"
#include "holdfast/transport/tcp_transport.h"

namespace holdfast::python {

// All calls need the GIL and release it while they wait. In a forked child get()
// throws, and let_go_in_child() closes the child's copies of the connections; the
// thread stays with the parent.
class HeldTransport {
 public:
  explicit HeldTransport(std::unique_ptr<TcpTransport> transport)
      : transport_(std::move(transport)) {}
  ~HeldTransport() {
    if (::getpid() != process_) {
      static_cast<void>(transport_.release());
      return;
    }
    const nb::gil_scoped_release unlocked;
    transport_.reset();
  }
  HeldTransport(const HeldTransport&) = delete;
  HeldTransport& operator=(const HeldTransport&) = delete;

  // Throws in a forked process.
  TcpTransport& get() const {
    if (::getpid() == process_) return *transport_;
    throw Raised(invalid(
        "transport: it belongs to process {}, and this is its child {}; expected "
        "a call from the process that opened it",
        process_, ::getpid()));
  }
  // Called in the child after a fork. Does nothing in the parent.
  void let_go_in_child() {
    if (::getpid() != process_) transport_->close_in_child();
  }

 private:
  const pid_t process_ = ::getpid();
  std::unique_ptr<TcpTransport> transport_;
};

}  // namespace holdfast::python

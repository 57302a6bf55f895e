// Python face of base/tcp_transport: names, types and docs only.
#include "transport.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

namespace holdfast::python {
namespace {

using Timeout = std::optional<double>;

ByteView view_of(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

nb::bytes to_python(ByteView bytes) { return nb::bytes(bytes.data(), bytes.size()); }

void listen(HeldTransport* self, int rank, int size, const nb::bytes& token,
            std::string host, double silence) {
  if (rank < 0 || rank >= size) throw Raised(invalid("rank {} of {}", rank, size));
  if (token.size() != kTokenBytes) {
    throw Raised(invalid("token: {} bytes, want {}", token.size(), kTokenBytes));
  }
  if (!(silence >= 1 && silence <= 86400)) {
    throw Raised(invalid("silence: {}, want 1 to 86400", silence));
  }
  TcpOptions options{.host = std::move(host),
                     .silence = std::chrono::duration_cast<Duration>(
                         std::chrono::duration<double>(silence))};
  std::ranges::copy(view_of(token), options.token.begin());
  auto transport = [&] {
    const nb::gil_scoped_release unlocked;
    return unwrap(TcpTransport::listen(env(), rank, size, options));
  }();
  new (self) HeldTransport(std::move(transport));
}

void connect(HeldTransport& self, const std::vector<std::string>& addresses,
             Timeout timeout) {
  TcpTransport& transport = self.get();
  const nb::gil_scoped_release unlocked;
  unwrap(transport.connect(addresses, deadline_of(timeout)));
}

void check(const TcpTransport& transport, int rank, Tag tag) {
  if (rank < 0 || rank >= transport.size()) {
    throw Raised(invalid("rank {} of {}", rank, transport.size()));
  }
  if (tag < 0) throw Raised(invalid("tag {}, want 0 or more", tag));
}

void send(HeldTransport& self, int to, Tag tag, const nb::bytes& message,
          Timeout timeout) {
  TcpTransport& transport = self.get();
  check(transport, to, tag);
  const nb::gil_scoped_release unlocked;
  unwrap(transport.send(to, tag, view_of(message), deadline_of(timeout)));
}

nb::bytes recv(HeldTransport& self, int from, Tag tag, Timeout timeout) {
  TcpTransport& transport = self.get();
  check(transport, from, tag);
  return to_python(unwrap(wait_interruptibly(
      timeout, [&](Instant until) { return transport.recv(from, tag, until); },
      [] { return false; })));
}

void barrier(HeldTransport& self, Timeout timeout) {
  TcpTransport& transport = self.get();
  const nb::gil_scoped_release unlocked;
  unwrap(transport.barrier(deadline_of(timeout)));
}

std::vector<nb::bytes> all_gather(HeldTransport& self, const nb::bytes& message,
                                  Timeout timeout) {
  TcpTransport& transport = self.get();
  const std::vector<Bytes> all = [&] {
    const nb::gil_scoped_release unlocked;
    return unwrap(transport.all_gather(view_of(message), deadline_of(timeout)));
  }();
  std::vector<nb::bytes> messages;
  for (const Bytes& one : all) messages.push_back(to_python(one));
  return messages;
}

void close(HeldTransport& self) {
  TcpTransport& transport = self.get();
  const nb::gil_scoped_release unlocked;
  transport.close();
}

}  // namespace

void bind_transport(nb::module_& m) {
  using T = HeldTransport;
  nb::class_<T>(
      m, "TcpTransport", nb::is_weak_referenceable(),
      "Small messages between the ranks of a job, over TCP.\n\n"
      "Made by holdfast.torch.transport.connect. UnavailableError if a peer is\n"
      "gone, TimeoutError after `timeout` seconds.")
      .def("__init__", &listen, nb::arg("rank"), nb::arg("size"), nb::kw_only(),
           nb::arg("token"), nb::arg("host") = "", nb::arg("silence") = 60.0,
           "Listens at `host`, or where others may find this machine. `token` is 32\n"
           "random bytes, the same on all ranks of one job and no other; a network "
           "that\n"
           "says nothing for `silence` seconds is taken for dead.")
      .def_prop_ro(
          "address", [](const T& self) { return self.get().address(); },
          "Where the others find this rank.")
      .def_prop_ro(
          "rank", [](const T& self) { return self.get().rank(); }, "This rank.")
      .def_prop_ro(
          "size", [](const T& self) { return self.get().size(); }, "All ranks.")
      .def("connect", &connect, nb::arg("addresses"), nb::arg("timeout") = nb::none(),
           "Returns when this rank is connected to all others. Called once.")
      .def("send", &send, nb::arg("to"), nb::arg("tag"), nb::arg("message"),
           nb::arg("timeout") = nb::none(), "Sends; waits only for room.")
      .def("recv", &recv, nb::arg("from_rank"), nb::arg("tag"),
           nb::arg("timeout") = nb::none(),
           "The next message of that rank with that tag.")
      .def("barrier", &barrier, nb::arg("timeout") = nb::none(),
           "Returns when all ranks have called it.")
      .def("all_gather", &all_gather, nb::arg("message"),
           nb::arg("timeout") = nb::none(), "What every rank passed, by rank.")
      .def("close", &close, "Leaves the job; the others find this rank gone.")
      .def("let_go_in_child", &T::let_go_in_child,
           "After a fork, in the child: closes its copies of the connections, which\n"
           "would hide the parent's end from the peers.");
}

}  // namespace holdfast::python

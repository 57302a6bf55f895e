// Bindings of transport/tcp_transport.h: names, types and docs only.
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
  if (rank < 0 || rank >= size)
    throw Raised(invalid("rank: {}; expected 0 or more, below size {}", rank, size));
  if (token.size() != kTokenBytes) {
    throw Raised(invalid("token: {} bytes; expected {}", token.size(), kTokenBytes));
  }
  if (!(silence >= 1 && silence <= 86400)) {
    throw Raised(invalid("silence: {} seconds; expected 1 to 86400", silence));
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
  const std::shared_ptr<TcpTransport> transport = self.get();
  const nb::gil_scoped_release unlocked;
  unwrap(transport->connect(addresses, deadline_of(timeout)));
}

void check(const TcpTransport& transport, int rank, Tag tag) {
  if (rank < 0 || rank >= transport.size()) {
    throw Raised(
        invalid("rank: {}; expected 0 or more, below size {}", rank, transport.size()));
  }
  if (tag < 0) throw Raised(invalid("tag: {}; expected 0 or more", tag));
}

void send(HeldTransport& self, int to, Tag tag, const nb::bytes& message,
          Timeout timeout) {
  const std::shared_ptr<TcpTransport> transport = self.get();
  check(*transport, to, tag);
  const nb::gil_scoped_release unlocked;
  unwrap(transport->send(to, tag, view_of(message), deadline_of(timeout)));
}

nb::bytes recv(HeldTransport& self, int from, Tag tag, Timeout timeout) {
  const std::shared_ptr<TcpTransport> transport = self.get();
  check(*transport, from, tag);
  return to_python(unwrap(call_interruptibly(
      timeout, [&](Instant until) { return transport->recv(from, tag, until); })));
}

void barrier(HeldTransport& self, Timeout timeout) {
  const std::shared_ptr<TcpTransport> transport = self.get();
  const nb::gil_scoped_release unlocked;
  unwrap(transport->barrier(deadline_of(timeout)));
}

std::vector<nb::bytes> all_gather(HeldTransport& self, const nb::bytes& message,
                                  Timeout timeout) {
  const std::shared_ptr<TcpTransport> transport = self.get();
  const std::vector<Bytes> all = [&] {
    const nb::gil_scoped_release unlocked;
    return unwrap(transport->all_gather(view_of(message), deadline_of(timeout)));
  }();
  std::vector<nb::bytes> messages;
  for (const Bytes& one : all) messages.push_back(to_python(one));
  return messages;
}

void close(HeldTransport& self) {
  const std::shared_ptr<TcpTransport> transport = self.get();
  const nb::gil_scoped_release unlocked;
  transport->close();
}

}  // namespace

void bind_transport(nb::module_& m) {
  using T = HeldTransport;
  nb::class_<T>(
      m, "TcpTransport", nb::is_weak_referenceable(),
      "Small messages between the ranks of a job, over TCP.\n\n"
      "Made by holdfast.torch.transport.connect. Calls raise UnavailableError if a\n"
      "peer is gone, and TimeoutError after `timeout` seconds.")
      .def(
          "__init__", &listen, nb::arg("rank"), nb::arg("size"), nb::kw_only(),
          nb::arg("token"), nb::arg("host") = "", nb::arg("silence") = 60.0,
          "Listens at `host`, or if it is empty at an address of this machine that\n"
          "other machines can reach. `token` is 32 random bytes, the same on all "
          "ranks\n"
          "of one job and different in every other job. A connection on which nothing\n"
          "arrives for `silence` seconds counts as broken.")
      .def_prop_ro(
          "address", [](const T& self) { return self.get()->address(); },
          "The address at which other ranks reach this rank.")
      .def_prop_ro(
          "rank", [](const T& self) { return self.get()->rank(); }, "This rank.")
      .def_prop_ro(
          "size", [](const T& self) { return self.get()->size(); },
          "The number of ranks.")
      .def("connect", &connect, nb::arg("addresses"), nb::arg("timeout") = nb::none(),
           "Returns when this rank is connected to all others. Called once.")
      .def("send", &send, nb::arg("to"), nb::arg("tag"), nb::arg("message"),
           nb::arg("timeout") = nb::none(),
           "Sends a message. Waits only while too much is queued already.")
      .def("recv", &recv, nb::arg("from_rank"), nb::arg("tag"),
           nb::arg("timeout") = nb::none(),
           "The next message of that rank with that tag.")
      .def("barrier", &barrier, nb::arg("timeout") = nb::none(),
           "Returns when all ranks have called it.")
      .def("all_gather", &all_gather, nb::arg("message"),
           nb::arg("timeout") = nb::none(),
           "The messages that all ranks passed, ordered by rank.")
      .def("close", &close,
           "Leaves the job. Calls of other ranks to this rank then raise.")
      .def("replace", &T::replace, nb::arg("next"),
           "Closes the connections and goes on with those of `next`, a transport of "
           "the\n"
           "same rank and size that is connected already. All that holds this "
           "transport,\n"
           "such as a Job and a Gate, then uses the new connections. Calls that wait\n"
           "raise UnavailableError.")
      .def("let_go_in_child", &T::let_go_in_child,
           "Called in the child after a fork: closes its copies of the connections.\n\n"
           "While the child kept them open, other ranks could not notice that the\n"
           "parent has ended.");
}

}  // namespace holdfast::python

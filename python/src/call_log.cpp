// Binding of recovery/call_log.h: names, types and docs only.
#include "holdfast/recovery/call_log.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "transport.h"

namespace holdfast::python {
namespace {

// A key as Python has it: update, group, call, from, to, number.
using Key = std::tuple<int64_t, std::string, std::string, int, int, int64_t>;
using Part = std::tuple<uint64_t, size_t>;  // an address and a number of bytes

CallKey key_of(const Key& key) {
  const auto& [update, group, call, from, to, number] = key;
  return {update, group, call, from, to, number};
}

ByteView view(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

std::vector<ByteView> views_of(const std::vector<Part>& parts) {
  std::vector<ByteView> views;
  for (const auto& [address, bytes] : parts) {
    views.emplace_back(reinterpret_cast<const std::byte*>(address), bytes);  // NOLINT
  }
  return views;
}

nb::bytes to_bytes(const Bytes& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// In a forked child the log is a copy that nobody reads, so it needs no check.
class HeldCallLog {
 public:
  void put(const Key& key, const std::string& text, const std::vector<Part>& parts) {
    const std::vector<ByteView> views = views_of(parts);
    const nb::gil_scoped_release unlocked;
    unwrap(log_.put(key_of(key), text, views));
  }
  std::tuple<std::string, nb::bytes> find(const Key& key) const {
    const CallRecord found = unwrap(log_.find(key_of(key)));
    return {found.text, to_bytes(found.bytes)};
  }
  std::string pass_on(const nb::object& transport, int to, int from, const Key& key,
                      const std::string& text, const std::vector<Part>& parts,
                      std::optional<double> timeout) {
    Transport& over = nb::cast<HeldTransport&>(transport).over();
    const std::vector<ByteView> views = views_of(parts);
    const nb::gil_scoped_release unlocked;
    return unwrap(log_.pass_on(over, to, from, key_of(key), text, views, deadline_of(timeout)));
  }
  void send_to(const nb::object& transport, const CallLog::Wanted& wanted,
               std::optional<double> timeout, std::optional<int> receiver) const {
    Transport& over = nb::cast<HeldTransport&>(transport).over();
    const nb::gil_scoped_release unlocked;
    const int to = receiver.value_or(wanted.to);
    unwrap(log_.send_to(over, to, wanted, deadline_of(timeout)));
  }
  void receive_from(const nb::object& transport, int from, const CallLog::Wanted& wanted,
                    std::optional<double> timeout) {
    Transport& over = nb::cast<HeldTransport&>(transport).over();
    const nb::gil_scoped_release unlocked;
    unwrap(log_.receive_from(over, from, wanted, deadline_of(timeout)));
  }
  CallLog& log() { return log_; }

 private:
  CallLog log_{machine()};
};

}  // namespace

void bind_call_log(nb::module_& m) {
  nb::class_<CallLog::Wanted>(m, "WantedCalls",
                              "Which records the replacement of a lost rank needs.")
      .def(
          "__init__",
          [](CallLog::Wanted* self, int to, std::vector<std::string> groups,
             int64_t after, int64_t through) {
            new (self) CallLog::Wanted{to, std::move(groups), after, through};
          },
          nb::arg("to"), nb::arg("groups"), nb::arg("after"), nb::arg("through"),
          "Messages to that rank, and results of collective calls in the groups, of the\n"
          "updates behind `after` up to `through`.");
  nb::class_<HeldCallLog>(
      m, "CallLog",
      "What ranks said to each other, by key: (update, group, call, from, to, number).\n"
      "Start-up is update -1, and the ends of a collective call are -1.")
      .def(nb::init<>())
      .def(
          "configure",
          [](HeldCallLog& self, int64_t memory, std::string spill) {
            self.log().configure({.memory = memory, .spill = std::move(spill)});
          },
          nb::arg("memory"), nb::arg("spill") = "",
          "How many bytes are kept in memory, and in which folder there may be more.")
      .def("put", &HeldCallLog::put, nb::arg("key"), nb::arg("text"), nb::arg("parts"),
           "Keeps a call: a text, and the bytes at (address, bytes), one part after the\n"
           "other. OSError if there is no room.")
      .def("pass_on", &HeldCallLog::pass_on, nb::arg("transport"), nb::arg("to"),
           nb::arg("from_rank"), nb::arg("key"), nb::arg("text"), nb::arg("parts"),
           nb::arg("timeout") = nb::none(),
           nb::sig("def pass_on(self, transport: TcpTransport, to: int, from_rank: int, "
                   "key: tuple[int, str, str, int, int, int], text: str, parts: "
                   "collections.abc.Sequence[tuple[int, int]], timeout: float | None = None) "
                   "-> str"),
           "Gives a rank a record of this one, as for put(), and keeps that of another rank.\n"
           "Returns the text of that record. OSError if there is no room for it.")
      .def("find", &HeldCallLog::find, nb::arg("key"),
           "(text, bytes) of a call. NotFoundError, or CorruptError if it is damaged.")
      .def(
          "pack",
          [](HeldCallLog& self, const Key& key) {
            return to_bytes(unwrap(self.log().pack(key_of(key))));
          },
          nb::arg("key"), "The record of a call as bytes, for take().")
      .def(
          "take",
          [](HeldCallLog& self, const nb::bytes& packed) {
            unwrap(self.log().take(view(packed)));
          },
          nb::arg("packed"), "Takes in records that stand one behind the other.")
      .def(
          "drop_through",
          [](HeldCallLog& self, int64_t update) { self.log().drop_through(update); },
          nb::arg("update"), "Forgets updates up to this one, but not start-up.")
      .def(
          "clear", [](HeldCallLog& self) { self.log().clear(); }, "Forgets everything.")
      .def_prop_ro(
          "bytes", [](HeldCallLog& self) { return self.log().bytes(); },
          "How much is kept.")
      .def_prop_ro(
          "bytes_in_memory", [](HeldCallLog& self) { return self.log().bytes_in_memory(); },
          "How much of it is in memory, without start-up.")
      .def_prop_ro(
          "hole", [](HeldCallLog& self) { return self.log().hole(); },
          "The newest update of which a record was not kept, or -1.")
      .def("send_to", &HeldCallLog::send_to, nb::arg("transport"), nb::arg("wanted"),
           nb::arg("timeout") = nb::none(), nb::arg("receiver") = nb::none(),
           nb::sig("def send_to(self, transport: TcpTransport, wanted: WantedCalls, "
                   "timeout: float | None = None, receiver: int | None = None) -> None"),
           "Sends the replacement what it needs of this log, or another process of the\n"
           "transport, which makes the calls of that rank, too.")
      .def("receive_from", &HeldCallLog::receive_from, nb::arg("transport"),
           nb::arg("rank"), nb::arg("wanted"), nb::arg("timeout") = nb::none(),
           nb::sig("def receive_from(self, transport: TcpTransport, rank: int, wanted: "
                   "WantedCalls, timeout: float | None = None) -> None"),
           "Takes in what a survivor sends. CorruptError if a record is damaged.");
}

}  // namespace holdfast::python

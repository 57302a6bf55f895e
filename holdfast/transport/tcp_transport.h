// A Transport over TCP, between the processes of a job on one host or many.
//
//   1. Every rank listens: from then on it has an address.
//   2. The caller brings all addresses, and one random token, to all ranks in its own
//      way.
//   3. Every rank connects to each rank below it, and each rank above connects to it.
//      Both sides show the token first; a connection that does not is closed at once.
//
// Two ranks share one connection. A thread of the transport serves all connections, so
// calls may wait in any number of threads, and none of them needs the Python
// interpreter. Peers notice the end of a process at once, and the end of a host or of
// the network within `silence`.
//
// In addition to what transport.h says: a call that needs a rank that has not connected
// yet waits for that rank. A message longer than `most_bytes` is kInvalid. Bytes that
// are no message end the connection on which they arrive: that peer is then
// kUnavailable, and all others are unaffected. The token keeps other jobs and strangers
// out. Messages are not encrypted.
//
// A job of n ranks needs about n descriptors in each of its processes. exec closes
// them, fork does not: see close_in_child().
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

inline constexpr size_t kTokenBytes = 32;
using JobToken = std::array<std::byte, kTokenBytes>;

struct TcpOptions {
  JobToken token{};  // the same on all ranks, random, and never used for another job
  // The name or numeric address to listen at, which all other ranks can reach. If
  // empty: an address of this host's name; else of an interface that is up; else
  // loopback.
  std::string host{};
  // How many messages, and how many bytes, may be on their way to one rank with one
  // tag before send() waits. A longer message may be on its way alone. The same on all
  // ranks.
  size_t queue = 1024;
  int64_t queue_bytes = kQueueBytes;
  // The longest message. The same on all ranks.
  int64_t most_bytes = int64_t{256} << 20;
  // Peers notice the end of a host or of the network within this time.
  Duration silence = std::chrono::seconds(60);
};

class Mailbox;
class TcpLoop;

class TcpTransport : public Transport {
 public:
  // kInvalid for a host name that is not a name of this host; kIo and kUnavailable
  // where the system refuses. Deadlines are times of `env`, which must outlive the
  // transport.
  static Result<std::unique_ptr<TcpTransport>> listen(Env& env, int rank, int size,
                                                      const TcpOptions& options);
  // Calls close().
  ~TcpTransport() override;

  // The address of this rank, for the others: "10.0.0.7:43117", "[fd00::7]:43117".
  const std::string& address() const;

  // Returns when this rank is connected to all others. Call it once, with the addresses
  // of all ranks, by rank. kUnavailable if a rank is gone or does not answer as a rank
  // of this job, kInvalid for what is no address. After a failure the transport cannot
  // be used.
  Result<void> connect(const std::vector<std::string>& addresses, Instant deadline);

  // Leaves the job. First sends all messages that still wait, for at most about a
  // second. Then the peers find this rank gone. Calls that still wait in this process
  // give kUnavailable.
  void close();

  // For a forked child process: closes its copies of the connections, because while
  // they are open the peers do not notice when the parent ends. The child may use
  // nothing else of the transport, and must never destroy it.
  void close_in_child();

  int rank() const override;
  int size() const override;
  Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) override;
  Result<void> send_in_place(int to, Tag tag, ByteView bytes,
                             Instant deadline) override;
  Result<Bytes> recv(int from, Tag tag, Instant deadline) override;
  Result<size_t> recv_into(int from, Tag tag, ByteSpan into, Instant deadline) override;
  Result<void> barrier(Instant deadline) override;
  Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) override;

 private:
  TcpTransport(std::unique_ptr<Mailbox> mailbox, TcpLoop& loop);

  std::unique_ptr<Mailbox> mailbox_;
  TcpLoop& loop_;  // belongs to the mailbox
};

}  // namespace holdfast

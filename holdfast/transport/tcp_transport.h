// A Transport over TCP, between the processes of a job on one host or many.
//
//   1. Every rank listens: from then on it has an address.
//   2. The caller brings all addresses, and one random token, to all ranks by a way of
//      its own.
//   3. Every rank connects: to each rank below it, and each above it to this one. Both
//      sides show the token first; a connection that does not is closed at once.
//
// One connection joins two ranks, and a thread of the transport's own serves all of
// them, so calls may wait in any number of threads and nobody's interpreter is needed.
// The end of a process is seen by its peers at once; that of a host, or of the network
// between, within `silence`.
//
// Besides what transport.h says: a call that needs a rank that has not connected yet
// waits for it. A message above `most_bytes` is kInvalid. What arrives and is no message
// ends the connection that it came by, and with it that peer (kUnavailable), and nothing
// else. The token keeps other jobs and strangers out; who listens on the wire is not
// kept from reading.
//
// A job of n ranks needs n descriptors in each of its processes. They are closed by exec,
// but not by fork: see close_in_child().
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
  // The name or numeric address to listen at, which all others can reach. Empty: what
  // this host's name stands for; else an interface that is up; else loopback.
  std::string host{};
  size_t queue = 1024;  // messages on their way to one rank before send waits; the same
                        // on all ranks
  int64_t most_bytes = int64_t{256} << 20;  // of a message; the same on all ranks
  Duration silence = std::chrono::seconds(60);
};

class TcpTransport : public Transport {
 public:
  // kInvalid for a host that is not this one's, kIo and kUnavailable where the system
  // refuses. Deadlines are times of `env`, which must outlive the transport.
  static Result<std::unique_ptr<TcpTransport>> listen(Env& env, int rank, int size,
                                                      const TcpOptions& options);
  // close()
  ~TcpTransport() override;

  // Of this rank, for the others: "10.0.0.7:43117", "[fd00::7]:43117".
  const std::string& address() const;

  // Returns when this rank is connected to all others; called once. `addresses`: of all
  // ranks, by rank. kUnavailable if one is gone or does not answer as a rank of this job,
  // kInvalid for what is no address. The transport is of no use after a failure.
  Result<void> connect(const std::vector<std::string>& addresses, Instant deadline);

  // Leaves the job: what was sent goes out first, if the peers take it (a second at most);
  // then they find this rank gone, and so do calls that still wait here.
  void close();

  // For a process that was forked: closes its copies of the connections, because while
  // they are open the peers do not see the parent's end. Nothing else of this copy may be
  // used after a fork, and it is never destroyed.
  void close_in_child();

  int rank() const override;
  int size() const override;
  Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) override;
  Result<Bytes> recv(int from, Tag tag, Instant deadline) override;
  Result<void> barrier(Instant deadline) override;
  Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) override;

 private:
  class Office;
  explicit TcpTransport(std::unique_ptr<Office> office);

  std::unique_ptr<Office> office_;
};

}  // namespace holdfast

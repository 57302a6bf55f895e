// For tests and benchmarks: real processes that are connected over TCP.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "holdfast/env/posix_env.h"
#include "holdfast/transport/tcp_transport.h"

namespace holdfast::tests {

// Starts `ranks` processes that are connected over TCP. Each runs the body with its rank
// and transport, and its exit code is what the body returns. `settle` is called first in
// each process, with its rank, and returns the address at which the process listens.
class Processes {
 public:
  using Body = std::function<int(Env&, TcpTransport&)>;
  using Settle = std::function<std::string(int rank)>;
  Processes(int ranks, const Body& body,
            const Settle& settle = [](int) { return "127.0.0.1"; }) {
    std::vector<std::array<int, 2>> up(static_cast<size_t>(ranks)), down(up);
    for (auto* pipes : {&up, &down}) {
      for (auto& ends : *pipes) HOLDFAST_CHECK(::pipe(ends.data()) == 0, "pipe");
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        const auto r = static_cast<size_t>(rank);
        ::_exit(run_child(rank, ranks, {up[r][1], down[r][0]}, body, settle));
      }
      children_.push_back(child);
    }
    std::string all;
    for (const auto& ends : up) all += read_line(ends[0]);
    for (const auto& ends : down) write_all(ends[1], all);
    for (const auto& ends : up) read_line(ends[0]);  // all are connected
    for (auto* pipes : {&up, &down}) {
      for (const auto& ends : *pipes) {
        ::close(ends[0]);
        ::close(ends[1]);
      }
    }
  }

  pid_t child(int rank) const { return children_[static_cast<size_t>(rank)]; }
  // The exit codes; 128 and the signal for a process that was killed.
  std::vector<int> wait() {
    std::vector<int> codes;
    for (const pid_t child : children_) {
      int status = 0;
      HOLDFAST_CHECK(::waitpid(child, &status, 0) == child, "waitpid");
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status)
                                        : 128 + WTERMSIG(status));
    }
    return codes;
  }

 private:
  static std::string read_line(int from) {
    std::string line;
    for (char c = 0; c != '\n';) {
      HOLDFAST_CHECK(::read(from, &c, 1) == 1, "a process ended early");
      line += c;
    }
    return line;
  }
  static void write_all(int to, const std::string& text) {
    HOLDFAST_CHECK(::write(to, text.data(), text.size()) ==
                       static_cast<ssize_t>(text.size()),
                   "write");
  }
  struct ToParent {
    int write, read;  // descriptors
  };
  static int run_child(int rank, int ranks, ToParent parent, const Body& body,
                       const Settle& settle) {
    const std::string host = settle(rank);
    const auto env = make_posix_env();
    const auto transport =
        TcpTransport::listen(*env, rank, ranks, {.host = host}).value();
    write_all(parent.write, transport->address() + "\n");
    std::vector<std::string> addresses;
    for (int r = 0; r < ranks; ++r) {
      addresses.push_back(read_line(parent.read));
      addresses.back().pop_back();
    }
    transport->connect(addresses, env->now() + std::chrono::seconds(60)).value();
    write_all(parent.write, "connected\n");
    return body(*env, *transport);
  }

  std::vector<pid_t> children_;
};

}  // namespace holdfast::tests

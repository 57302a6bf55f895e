// Exchanges between real processes: how much memory they take, and what becomes of the
// others when one of them is killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "holdfast/exchange/live_state_testing.h"

namespace holdfast::tests {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kRows = 2048, kColumns = 1024;
constexpr int64_t kTensorBytes = kRows * kColumns * 4;

// Tensors of 8 MiB whose rows are shared by the first `ranks` workers.
Collection shared_rows(int tensors, int ranks) {
  std::vector<Tensor> all;
  for (int t = 0; t < tensors; ++t) {
    all.push_back(tensor_of(fmt::format("t{}", t), {kRows, kColumns}));
  }
  RankLayout layout(all, ranks);
  for (TensorId t = 0; t < all.size(); ++t) {
    for (int r = 0; r < ranks; ++r) {
      layout.put(t, Box{{kRows * r / ranks, kRows * (r + 1) / ranks}, {0, kColumns}}, r);
    }
  }
  return layout.build();
}

// The bits of an element, from the number of the tensor and that of the element.
uint32_t value_at(uint32_t tensor, int64_t number) {
  return static_cast<uint32_t>(number) * 2654435761u + tensor;
}
uint32_t number_of(const Tensor& tensor) {
  return static_cast<uint32_t>(std::stoi(tensor.name.substr(1)));
}

// Calls visit(element in memory, number) for a piece that is dense and has whole rows.
template <typename Visit>
void for_each_value(const LocalPiece& piece, Visit&& visit) {
  auto* values = reinterpret_cast<uint32_t*>(piece.memory.data());
  const int64_t first = piece.box[0].lo * kColumns;
  for (int64_t i = 0; i < piece.box.elements(); ++i) visit(values[i], first + i);
}

bool has_right_values(const LocalPieces& pieces) {
  bool right = true;
  for (const LocalPiece& piece : pieces) {
    const uint32_t tensor = number_of(*piece.tensor);
    for_each_value(piece, [&](uint32_t value, int64_t number) {
      right &= value == value_at(tensor, number);
    });
  }
  return right;
}

LocalPieces make_old(const Collection& source, int rank, HostStorage& storage) {
  std::vector<LocalPiece> pieces;
  if (rank >= static_cast<int>(source.layout().holders().size())) return pieces;
  for_each_piece(source, [&](TensorId t, HolderId h, const Box& box, const Map&) {
    if (h != static_cast<HolderId>(rank)) return;
    const auto tensor = std::make_shared<const Tensor>(source.tensor(t));
    pieces.push_back(storage.make(tensor, box).value());
    const uint32_t which = number_of(*tensor);
    for_each_value(pieces.back(), [&](uint32_t& value, int64_t number) {
      value = value_at(which, number);
    });
  });
  return pieces;
}

// The proportional set size of this process in bytes.
int64_t pss(Env& env) {
  const std::string text = env.read_text("/proc/self/smaps_rollup").value();
  const size_t at = text.find("\nPss:");
  return std::stoll(text.substr(at + 5)) * 1024;
}

// Looks at the memory of this process until it is destroyed.
class PssWatch {
 public:
  explicit PssWatch(Env& env)
      : env_(env), before_(pss(env)), most_(before_), thread_([this](std::stop_token s) {
          while (!s.stop_requested()) {
            most_ = std::max(most_.load(), pss(env_));
            std::this_thread::sleep_for(2ms);
          }
        }) {}
  int64_t above_before() const { return most_ - before_; }

 private:
  Env& env_;
  const int64_t before_;
  std::atomic<int64_t> most_;
  std::jthread thread_;
};

// Starts `ranks` processes that are connected over TCP. Each runs the body with its rank
// and transport, and its exit code is what the body returns.
class Processes {
 public:
  Processes(int ranks, const std::function<int(Env&, TcpTransport&)>& body) {
    std::vector<std::array<int, 2>> up(static_cast<size_t>(ranks)), down(up);
    for (auto* pipes : {&up, &down}) {
      for (auto& ends : *pipes) HOLDFAST_CHECK(::pipe(ends.data()) == 0, "pipe");
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        const auto r = static_cast<size_t>(rank);
        ::_exit(run_child(rank, ranks, up[r][1], down[r][0], body));
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
  static int run_child(int rank, int ranks, int to_parent, int from_parent,
                       const std::function<int(Env&, TcpTransport&)>& body) {
    const auto env = make_posix_env();
    const auto transport =
        TcpTransport::listen(*env, rank, ranks, {.host = "127.0.0.1"}).value();
    write_all(to_parent, transport->address() + "\n");
    std::vector<std::string> addresses;
    for (int r = 0; r < ranks; ++r) {
      addresses.push_back(read_line(from_parent));
      addresses.back().pop_back();
    }
    transport->connect(addresses, env->now() + 60s).value();
    write_all(to_parent, "connected\n");
    return body(*env, *transport);
  }

  std::vector<pid_t> children_;
};

struct Change {
  Change(int tensors, int from, int to)
      : source(shared_rows(tensors, from)),
        target(shared_rows(tensors, to)),
        made(plan(source, target, Topology::uniform(1)).value()) {}

  Result<Exchanged> run(Env& env, Transport& transport, const LocalPieces& old,
                        HostStorage& storage, const ExchangeOptions& options) const {
    const ExchangeTask task{.source = &source,
                            .target = &target,
                            .plan = &made,
                            .holder = fmt::format("rank {}", transport.rank()),
                            .old = old};
    return exchange(env, transport, task, storage, options);
  }

  Collection source, target;
  Plan made;
};

TEST(ExchangeProcessesTest, FourBecomeEightWithinTheMemoryOfTheLargerState) {
  constexpr int kTensors = 32;  // 256 MiB
  constexpr int64_t kOnTheWay = 8 << 20;
  constexpr int64_t kOthers = 10 << 20;  // rings, stacks, buffers of the sockets
  const Change change(kTensors, 4, 8);
  Processes processes(8, [&](Env& env, TcpTransport& transport) {
    const int64_t all = kTensors * kTensorBytes;
    const int64_t old_bytes = transport.rank() < 4 ? all / 4 : 0, fresh = all / 8;
    HostStorage storage;
    const LocalPieces old = make_old(change.source, transport.rank(), storage);
    transport.barrier(kNoDeadline).value();  // all have written their values
    const PssWatch watch(env);
    const auto done =
        change.run(env, transport, old, storage,
                   {.mode = ExchangeMode::kWindowed, .on_the_way = kOnTheWay});
    const int64_t above = watch.above_before();
    if (!done.ok()) {
      fmt::print(stderr, "rank {}: {}\n", transport.rank(), message_of(done));
      return 1;
    }
    if (!has_right_values(done->pieces)) return 2;
    if (storage.bytes() != fresh) return 3;
    const int64_t larger = std::max(old_bytes, fresh);
    const int64_t bar = larger - old_bytes + kOnTheWay + kTensorBytes / 4 + kOthers;
    const bool within = above <= bar && done->peak <= old_bytes + bar;
    if (within && done->peak >= larger) return 0;
    fmt::print(stderr, "rank {}: {} bytes above, {} at most; expected at most {}\n",
               transport.rank(), above, done->peak, bar);
    return 4;
  });
  for (const int code : processes.wait()) EXPECT_EQ(code, 0);
}

// Exit codes of a process whose exchange was committed or dropped, with the right bytes.
constexpr int kCommitted = 10, kDropped = 11, kHarmed = 12;

TEST(ExchangeProcessesTest, AKilledProcessLeavesTheOthersWithTheirOldBytes) {
  const Change change(8, 4, 3);
  for (const auto after : {1ms, 15ms, 40ms}) {
    Processes processes(4, [&](Env& env, TcpTransport& transport) {
      HostStorage storage;
      const LocalPieces old = make_old(change.source, transport.rank(), storage);
      const int64_t before = storage.bytes();
      static_cast<void>(transport.barrier(kNoDeadline));
      const auto done = change.run(env, transport, old, storage, {});
      if (done.ok()) return has_right_values(done->pieces) ? kCommitted : kHarmed;
      const bool unharmed = has_right_values(old) && storage.bytes() == before;
      return unharmed ? kDropped : kHarmed;
    });
    std::this_thread::sleep_for(after);
    ::kill(processes.child(3), SIGKILL);
    const std::vector<int> codes = processes.wait();
    EXPECT_TRUE(codes[0] == kCommitted || codes[0] == kDropped) << codes[0];
    EXPECT_EQ(codes[1], codes[0]);
    EXPECT_EQ(codes[2], codes[0]);
  }
}

}  // namespace
}  // namespace holdfast::tests

// Exchanges between real processes: how much memory they take, what becomes of the others
// when one of them is killed, and which bytes go between two hosts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "holdfast/exchange/live_state_testing.h"
#include "holdfast/transport/processes_testing.h"

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

constexpr int kRanksOnHosts = 6;
constexpr int kSkipped = 77;  // an exit code

// Ranks 2 and 3 are on the second host.
int host_of(int rank) { return rank / 2 % 2; }

bool run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Two hosts are two network namespaces of this machine with a cable between them. This
// process is on the first one, and a child stays on the second one for as long as this
// object lives.
class TwoHosts {
 public:
  bool make() {
    if (::unshare(CLONE_NEWNET) != 0) return false;
    std::array<int, 2> made{}, wait{};
    if (::pipe(made.data()) != 0 || ::pipe(wait.data()) != 0) return false;
    other_ = ::fork();
    if (other_ == 0) {
      ::close(wait[1]);
      char byte = ::unshare(CLONE_NEWNET) == 0 ? 1 : 0;
      static_cast<void>(!::write(made[1], &byte, 1));
      static_cast<void>(!::read(wait[0], &byte, 1));  // until the other process ends
      ::_exit(0);
    }
    ::close(wait[0]);
    char byte = 0;
    if (::read(made[0], &byte, 1) != 1 || byte != 1) return false;
    const std::string space = fmt::format("/proc/{}/ns/net", other_);
    second_ = ::open(space.c_str(), O_RDONLY | O_CLOEXEC);
    const std::string there = fmt::format("nsenter --net={} ", space);
    return second_ >= 0 && run("ip link set lo up") &&
           run(fmt::format("ip link add hold0 type veth peer name hold1 netns {}",
                           other_)) &&
           run("ip address add 10.231.7.1/24 dev hold0") &&
           run("ip link set hold0 up") && run(there + "ip link set lo up") &&
           run(there + "ip address add 10.231.7.2/24 dev hold1") &&
           run(there + "ip link set hold1 up");
  }
  // Called in the process of a rank. Returns the address of its host.
  std::string settle(int rank) const {
    if (host_of(rank) == 0) return "10.231.7.1";
    HOLDFAST_CHECK(::setns(second_, CLONE_NEWNET) == 0, "setns");
    return "10.231.7.2";
  }

 private:
  pid_t other_ = -1;
  int second_ = -1;
};

// The same boxes on holders of the same names, each on its host.
Collection on_two_hosts(const Collection& collection) {
  std::vector<Holder> holders(collection.layout().holders().begin(),
                              collection.layout().holders().end());
  for (size_t r = 0; r < holders.size(); ++r) {
    holders[r].host = static_cast<HostId>(host_of(static_cast<int>(r)));
  }
  const std::vector<Tensor> tensors(collection.tensors().begin(),
                                    collection.tensors().end());
  LayoutBuilder builder(tensors, holders);
  for_each_piece(collection, [&](TensorId t, HolderId h, const Box& box, const Map& map) {
    builder.add(t, box, h, map);
  });
  return Collection::create(tensors, std::move(builder).build().value()).value();
}

// What the ranks have received by each carrier, in memory that they share.
using Received = std::array<std::array<int64_t, kCarriers>, kRanksOnHosts>;

// Runs in a process of its own, which goes into namespaces. Returns an exit code.
int change_between_hosts(Received& received) {
  TwoHosts hosts;
  if (!hosts.make()) return kSkipped;
  Change change(1, 3, kRanksOnHosts);
  change.source = on_two_hosts(change.source);
  change.target = on_two_hosts(change.target);
  change.made = plan(change.source, change.target, Topology::uniform(2)).value();
  Processes processes(
      kRanksOnHosts,
      [&](Env& env, TcpTransport& transport) {
        HostStorage storage;
        const int rank = transport.rank();
        const LocalPieces old = make_old(change.source, rank, storage);
        const auto done = change.run(env, transport, old, storage, {});
        if (!done.ok()) {
          fmt::print(stderr, "rank {}: {}\n", rank, message_of(done));
          return 1;
        }
        received[static_cast<size_t>(rank)] = done->received;
        return has_right_values(done->pieces) ? 0 : 2;
      },
      [&](int rank) { return hosts.settle(rank); });
  int worst = 0;
  for (const int code : processes.wait()) worst = std::max(worst, code);
  if (worst != 0) return worst;
  std::array<int64_t, kCarriers> sum{};
  for (const auto& one : received) {
    for (size_t c = 0; c < one.size(); ++c) sum[c] += one[c];
  }
  // Only what crosses hosts goes over the network.
  const auto& [moved, crossing] =
      std::pair(change.made.figures.moved, change.made.figures.crossing);
  const bool counted = crossing > 0 && crossing < moved &&
                       sum[static_cast<size_t>(Carrier::kTransport)] == crossing &&
                       sum[static_cast<size_t>(Carrier::kRing)] == moved - crossing;
  return counted ? 0 : 3;
}

// Only with HOLDFAST_LONG=1, and as root.
TEST(ExchangeHostsTest, OnlyWhatCrossesHostsGoesOverTheNetwork) {
  if (std::getenv("HOLDFAST_LONG") == nullptr) GTEST_SKIP() << "needs HOLDFAST_LONG=1";
  void* memory = ::mmap(nullptr, sizeof(Received), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& received = *new (memory) Received();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(change_between_hosts(received));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kSkipped) {
    GTEST_SKIP() << "needs the right to make network namespaces, and ip";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace holdfast::tests

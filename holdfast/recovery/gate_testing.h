// A job in one process whose ranks only pass gates, for tests that lose messages and
// end ranks. Only for *_test.cpp.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/recovery/decide.h"
#include "holdfast/recovery/gate.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/switch_transport.h"

namespace holdfast {

// A rank ends, or a message is lost, at the moment when the rank would send its message
// number `send`, counted from 1.
struct Fault {
  int rank = -1;
  int send = 0;
  bool lose = false;
};

// Passes messages on, and counts what it sends until the fault comes.
class FaultyWire : public Transport {
 public:
  FaultyWire(std::shared_ptr<LocalNetwork> network, int rank, const Fault& fault)
      : network_(std::move(network)), inner_(network_->endpoint(rank)), fault_(fault) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) override {
    const bool now = fault_.rank == rank() && ++sent_ == fault_.send;
    if (now) reached_ = true;
    if (now && fault_.lose) return {};
    if (now) network_->kill(rank());
    return inner_.send(to, tag, bytes, deadline);
  }
  Result<Bytes> recv(int from, Tag tag, Instant deadline) override {
    return inner_.recv(from, tag, deadline);
  }
  Result<void> barrier(Instant deadline) override { return inner_.barrier(deadline); }
  Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) override {
    return inner_.all_gather(bytes, deadline);
  }
  bool reached() const { return reached_; }

 private:
  std::shared_ptr<LocalNetwork> network_;
  Transport& inner_;
  const Fault fault_;
  int sent_ = 0;
  std::atomic<bool> reached_ = false;
};

class GateRanks {
 public:
  GateRanks(int size, std::vector<int> hosts = {})
      : size_(size), hosts_(std::move(hosts)), ranks_(static_cast<size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) lost_.insert(rank);
  }

  // Begins the next generation with new processes for the lost ranks, and makes updates
  // until that number or until the fault ends the generation. Returns whether the fault
  // was reached.
  bool train(int64_t until, const Fault& fault) {
    const bool first = generation_ < 0;
    ++generation_;
    const auto network = std::make_shared<LocalNetwork>(env_, size_);
    std::vector<std::shared_ptr<FaultyWire>> wires;
    for (int rank = 0; rank < size_; ++rank) {
      wires.push_back(std::make_shared<FaultyWire>(network, rank, fault));
      start(rank, wires.back());
    }
    replaced_ = first ? std::set<int>() : std::exchange(lost_, {});
    lost_.clear();
    // Ten milliseconds of real time if a message is lost, else half a minute: on a busy
    // machine healthy ranks need longer than ten.
    run_all(until, std::chrono::milliseconds(fault.lose ? 500 : 1'500'000));
    bool reached = false;
    for (const auto& wire : wires) reached |= wire->reached();
    if (reached && !fault.lose) lost_.insert(fault.rank);
    return reached;
  }

  // Asks the survivors, decides, and carries the decision out, as a coordinator does.
  // Checks all that must hold. False if the decision was to start all ranks again.
  bool recover() {
    std::vector<SurvivorStatus> statuses;
    for (int r = 0; r < size_; ++r) {
      if (lost_.contains(r)) continue;
      const Gate& gate = *at(r).gate;
      EXPECT_EQ(at(r).state, gate.committed()) << "rank " << r;
      statuses.push_back({.rank = r,
                          .committed = gate.committed(),
                          .ready = gate.ready(),
                          .in_update = at(r).in_update});
    }
    const Decision decision = decide(statuses, target_);
    EXPECT_EQ(decision.refused, "");
    target_ = decision.target;
    for (const int r : lost_) {
      if (!check_record(r)) return false;
    }
    for (const auto& [r, course] : decision.courses) {
      if (course != Course::kForward) continue;
      EXPECT_OK(at(r).gate->forward(target_));
      at(r).state = target_;
    }
    return true;
  }

  int64_t target() const { return target_; }
  int64_t state(int rank) { return at(rank).state; }
  bool refreshed() const { return refreshed_; }

 private:
  struct Rank {
    std::unique_ptr<SwitchTransport> transport{};
    std::unique_ptr<Gate> gate{};
    int64_t state = 0;  // updates that this rank has made
    bool in_update = false;
    bool beginning = false;  // it is in begin(), and may not have sent its record yet
  };

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  static std::string record(int rank, int64_t update, bool after) {
    return fmt::format("rank {} {} update {}", rank, after ? "after" : "in", update);
  }

  void start(int rank, const std::shared_ptr<Transport>& wire) {
    Rank& self = at(rank);
    if (!lost_.contains(rank)) return self.transport->replace(wire);
    self = {.transport = std::make_unique<SwitchTransport>(wire), .state = target_};
    self.gate = std::make_unique<Gate>(env_, *self.transport, hosts_);
  }

  // Time passes while the ranks run, so that nobody waits for long. When a rank has
  // failed, the launcher interrupts all ranks.
  void run_all(int64_t until, std::chrono::milliseconds limit) {
    std::atomic<int> running = size_;
    std::atomic<bool> failed = false;
    const Instant deadline = env_.now() + limit;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        if (!run_one(rank, until, deadline)) failed = true;
        --running;
      });
    }
    while (running > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      env_.advance(std::chrono::milliseconds(5));
      if (!failed) continue;
      for (Rank& rank : ranks_) rank.gate->interrupt();
    }
  }

  bool run_one(int rank, int64_t until, Instant deadline) {
    Rank& self = at(rank);
    self.in_update = false;
    self.beginning = true;
    const std::string first = record(rank, self.state, true);
    if (!self.gate->begin(generation_, self.state, bytes_of(first), deadline).ok()) {
      return false;
    }
    self.beginning = false;
    for (int64_t update = self.state + 1; update <= until; ++update) {
      self.in_update = true;
      const std::string mine = record(rank, update, false);
      if (!self.gate->pass(update, bytes_of(mine), deadline).ok()) return false;
      self.state = update;
      self.in_update = false;
      if (update % 2 != 0) continue;
      const std::string after = record(rank, update, true);
      if (!self.gate->refresh(update, bytes_of(after)).ok()) return false;
    }
    return true;
  }

  // The buddy of a lost rank has its record, unless that buddy was replaced itself and
  // the rank was lost before all records were sent again.
  bool check_record(int rank) {
    Rank& buddy = at(at(rank).gate->buddy());
    const auto kept = buddy.gate->record_of_peer(target_);
    if (!kept.has_value()) {
      EXPECT_TRUE(at(rank).beginning) << "rank " << rank << " update " << target_;
      EXPECT_TRUE(replaced_.contains(at(rank).gate->buddy()) || generation_ == 0);
      return false;
    }
    refreshed_ |= kept->refreshed;
    EXPECT_EQ(text_of(kept->bytes), record(rank, target_, kept->refreshed));
    return true;
  }

  const int size_;
  const std::vector<int> hosts_;
  MemoryEnv env_;
  std::vector<Rank> ranks_;
  std::set<int> lost_;      // have no process
  std::set<int> replaced_;  // have a new process since this generation
  int64_t generation_ = -1;
  int64_t target_ = 0;
  bool refreshed_ = false;
};

}  // namespace holdfast

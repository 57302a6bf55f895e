// Shares work over candidates so that the busiest of them, measured against its
// bandwidth, is as little busy as possible. Exact, and in integers only.
//
// Demands are grouped in classes by their set of possible senders: parallel layouts
// repeat, so thousands of tensors make few classes. The least time T is the largest
// bytes(classes inside X) / bandwidth(X) over sets X of senders; solve() finds it by
// maximum flow, raising T to the ratio of the cut that blocks it until none does
// (Dinkelbach's method), independently in each connected group of senders.
//
// Use: class_of and demand for all, then solve, then draw in the same order each time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "holdfast/state/box.h"

namespace holdfast {

class BipartiteFlow;

class Balancer {
 public:
  using ClassId = uint32_t;
  // A time: bytes over bytes a second.
  struct Ratio {
    int64_t bytes = 0;
    int64_t bandwidth = 1;
    bool operator<(const Ratio& other) const;
  };
  struct Part {
    uint32_t sender;
    Box box;
  };

  // Bandwidth of each sender, all positive.
  explicit Balancer(std::vector<int64_t> bandwidth);

  // `senders` ascending and not empty.
  ClassId class_of(std::span<const uint32_t> senders);
  void demand(ClassId id, int64_t bytes) { classes_[id].bytes += bytes; }

  void solve();
  // The least possible busiest time of the demands. After solve().
  Ratio optimum() const { return optimum_; }

  // Appends who sends which part of `box`. Together the draws of a class use up what was
  // demanded; a box is cut only where one sender's share ends, at a row that is at most
  // 32 KiB (or inside a wider row), so each sender is within such a row of its share.
  void draw(ClassId id, const Box& box, int64_t element_bytes, std::vector<Part>& out);

 private:
  struct Class {
    std::vector<uint32_t> senders;
    std::vector<int64_t> share{};  // bytes, one a sender
    int64_t bytes = 0;
    std::vector<int64_t> end{};  // where each sender's stretch ends; made at first draw
    int64_t start = 0;           // of the stretch being filled
    int64_t drawn = 0;           // all stretches so far
    size_t next = 0;             // the sender being filled
  };

  // Classes that share senders, and nobody else's.
  struct Group {
    std::span<const ClassId> ids;
    std::vector<std::vector<uint32_t>> edges{};  // senders of each class, from 0
    std::vector<int64_t> bandwidth{};            // of each sender, in units
    int64_t unit = 0;
  };

  Group group_of(std::span<const ClassId> ids) const;
  Ratio time_of(const Group& group, const std::vector<bool>& tight) const;
  void solve_group(std::span<const ClassId> ids);
  void share_out(const Group& group, const BipartiteFlow& flow, const Ratio& time);
  void open(Class& from);
  void finish(Class& from);

  std::vector<int64_t> bandwidth_;
  std::vector<Class> classes_;
  std::map<std::vector<uint32_t>, ClassId> ids_;
  // What rounding has left each sender short of (or over, if negative) in finished
  // classes; made good in the next class that it is in.
  std::vector<int64_t> owed_;
  Ratio optimum_;
};

}  // namespace holdfast

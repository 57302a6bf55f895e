// Shares out bytes over senders so that the sender that needs longest, by its
// bandwidth, is done as early as possible. The result is exact; all arithmetic is in
// integers.
//
// Demands with the same set of possible senders form a class. Parallel layouts repeat,
// so thousands of tensors make few classes. The least time T is the maximum, over all
// sets X of senders, of bytes(classes that only X can serve) / bandwidth(X). solve()
// finds T by maximum flow: it raises T to the ratio of the cut that blocks the flow,
// until no cut does (Dinkelbach's method). Each connected group of senders is solved on
// its own.
//
// How to use it: call class_of() and demand() for all demands, then solve(), then
// draw() for all demands. The result depends on the order of the draws.
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
  // A time: bytes divided by bytes a second.
  struct Ratio {
    int64_t bytes = 0;
    int64_t bandwidth = 1;
    bool operator<(const Ratio& other) const;
  };
  struct Part {
    uint32_t sender;
    Box box;
  };

  // The bandwidth of each sender. All must be positive.
  explicit Balancer(std::vector<int64_t> bandwidth);

  // The class of demands that these senders can serve. `senders` must be ascending and
  // not empty.
  ClassId class_of(std::span<const uint32_t> senders);
  void demand(ClassId id, int64_t bytes) { classes_[id].bytes += bytes; }

  void solve();
  // The time that the busiest sender needs, which no other sharing makes shorter. Valid
  // after solve().
  Ratio optimum() const { return optimum_; }

  // Appends which sender sends which part of `box`. All draws of a class together use
  // up what was demanded of it. A box is cut only where one sender's share ends, and
  // there between rows of at most 32 KiB (or inside a longer row). So each sender gets
  // its share up to one such row.
  void draw(ClassId id, const Box& box, int64_t element_bytes, std::vector<Part>& out);

 private:
  struct Class {
    std::vector<uint32_t> senders;
    std::vector<int64_t> share{};  // bytes, by sender
    int64_t bytes = 0;
    // All bytes of the class stand on one line, and each sender sends a stretch of it.
    std::vector<int64_t>
        end{};          // the end of each sender's stretch, from the first draw
    int64_t start = 0;  // where the stretch of the current sender starts
    int64_t drawn = 0;  // bytes that were drawn so far
    size_t next = 0;    // the current sender
  };

  // Classes that are connected by common senders. No other class has any of these
  // senders.
  struct Group {
    std::span<const ClassId> ids;
    std::vector<std::vector<uint32_t>> edges{};  // by class: its senders, renumbered
    std::vector<int64_t> bandwidth{};            // by sender, in multiples of `unit`
    int64_t unit = 0;                            // the greatest common divisor
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
  // How many bytes too few each sender has got by rounding in finished classes (too
  // many, if negative). The next class that has the sender corrects it.
  std::vector<int64_t> owed_;
  Ratio optimum_;
};

}  // namespace holdfast

#include "holdfast/plan/cost.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/number_text.h"

namespace holdfast {
namespace {

constexpr std::array<std::string_view, kLinks> kNames{"device", "adapter", "host", "copy",
                                                      "moves"};
constexpr double kGiga = 1e9, kMicro = 1e-6;
constexpr double kMostSpeed = 1e6, kMostTime = 1e9;  // in the units of the text

// What one end of a link has to do.
struct Load {
  int64_t out = 0, in = 0;
  int64_t busier() const { return std::max(out, in); }
};

// Counts what a plan loads each link with.
class LinkLoads {
 public:
  LinkLoads(const Plan& plan, const Collection& target) : plan_(plan) {
    HostId hosts = 0;
    for (const Holder& holder : plan.holders) hosts = std::max(hosts, holder.host + 1);
    for (const Link link : {Link::kDevice, Link::kAdapter, Link::kCopy, Link::kMoves}) {
      of(link).resize(plan.holders.size());
    }
    of(Link::kHost).resize(hosts);
    for (const Move& move : plan.moves) {
      add(move, plan.boxes[move.box].elements() *
                    bytes_of(target.tensor(move.tensor).dtype));
    }
  }

  int64_t busiest(Link link) const {
    int64_t most = 0;
    for (const Load& load : of(link)) most = std::max(most, load.busier());
    return most;
  }
  // The most that a host gets from others.
  int64_t most_imported() const {
    int64_t most = 0;
    for (const Load& load : of(Link::kHost)) most = std::max(most, load.in);
    return most;
  }

 private:
  std::vector<Load>& of(Link link) { return loads_[static_cast<size_t>(link)]; }
  const std::vector<Load>& of(Link link) const {
    return loads_[static_cast<size_t>(link)];
  }

  void add(const Move& move, int64_t bytes) {
    add(Link::kMoves, move.from_holder, move.to_holder, 1);
    if (move.from_holder == move.to_holder) {
      of(Link::kCopy)[move.to_holder].in += bytes;
      return;
    }
    const HostId from = plan_.holders[move.from_holder].host;
    const HostId to = plan_.holders[move.to_holder].host;
    add(from == to ? Link::kDevice : Link::kAdapter, move.from_holder, move.to_holder,
        bytes);
    if (from != to) add(Link::kHost, from, to, bytes);
  }
  void add(Link link, uint32_t from, uint32_t to, int64_t amount) {
    of(link)[from].out += amount;
    of(link)[to].in += amount;
  }

  const Plan& plan_;
  std::array<std::vector<Load>, kLinks> loads_;
};

// A move comes after the one that it waits for.
int64_t longest_chain(const Plan& plan) {
  std::vector<int64_t> depth(plan.moves.size());
  int64_t most = 0;
  for (size_t m = 0; m < plan.moves.size(); ++m) {
    const uint32_t after = plan.moves[m].after;
    depth[m] = 1 + (after == kNoMove ? 0 : depth[after]);
    most = std::max(most, depth[m]);
  }
  return most;
}

double seconds_for(int64_t amount, int64_t a_second) {
  return a_second > 0 ? static_cast<double>(amount) / static_cast<double>(a_second) : 0;
}

Result<double> parse_value(std::string_view key, std::string_view text, double most) {
  const std::optional<double> value = number_in<double>(text);
  if (value && *value > 0 && *value <= most) return *value;
  return invalid("speeds: {}={} cannot be read; expected a number above 0, at most {}",
                 key, text.substr(0, 40), most);
}

Result<void> set_speed(std::string_view key, std::string_view text, LinkSpeeds& speeds) {
  if (key == "latency") {
    speeds.latency = kMicro * HOLDFAST_TRY(parse_value(key, text, kMostTime));
    return {};
  }
  if (key == "move") {
    const double time = kMicro * HOLDFAST_TRY(parse_value(key, text, kMostTime));
    speeds.each[static_cast<size_t>(Link::kMoves)] =
        std::max<int64_t>(std::llround(1 / time), 1);
    return {};
  }
  const auto known = std::ranges::find(kNames, key);
  if (known == kNames.end() || key == "moves") {
    return invalid(
        "speeds: \"{}\" is not known; expected device, adapter, host, copy, latency or move",
        key.substr(0, 40));
  }
  const double value = kGiga * HOLDFAST_TRY(parse_value(key, text, kMostSpeed));
  speeds.each[static_cast<size_t>(known - kNames.begin())] =
      std::max<int64_t>(std::llround(value), 1);
  return {};
}

}  // namespace

std::string_view name_of(Link link) { return kNames[static_cast<size_t>(link)]; }

Result<LinkSpeeds> parse_speeds(std::string_view text) {
  LinkSpeeds speeds;
  std::vector<std::string_view> seen;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view key = pair.substr(0, equals);
    if (std::ranges::find(seen, key) != seen.end()) {
      return invalid("speeds: {} stands there twice; expected each key once",
                     key.substr(0, 40));
    }
    seen.push_back(key);
    HOLDFAST_TRY(set_speed(key, pair.substr(std::min(equals + 1, pair.size())), speeds));
  }
  return speeds;
}

Cost cost_of(const Plan& plan, const Collection& target, const LinkSpeeds& speeds) {
  const LinkLoads loads(plan, target);
  Cost cost{.depth = longest_chain(plan),
            .least = seconds_for(loads.most_imported(), speeds.of(Link::kHost))};
  for (size_t i = 0; i < kLinks; ++i) {
    const auto link = static_cast<Link>(i);
    cost.each[i] = seconds_for(loads.busiest(link), speeds.of(link));
    if (cost.each[i] > cost.each[static_cast<size_t>(cost.busiest)]) cost.busiest = link;
  }
  cost.seconds = cost.each[static_cast<size_t>(cost.busiest)] +
                 speeds.latency * static_cast<double>(cost.depth);
  return cost;
}

}  // namespace holdfast

// How long a plan takes, by a model of the links: a dry run for jobs of any size.
//
// All links work at the same time, and each needs its bytes divided by its speed. So a
// plan takes as long as its busiest link, and besides as long as the longest chain of moves
// that wait for each other needs to begin. What the model leaves out: the software between
// the links, and that a link shared with others is slower.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "holdfast/plan/plan.h"

namespace holdfast {

// What bytes go through, or what is counted otherwise.
enum class Link : uint8_t {
  kDevice,   // between a device and the other devices of its host, in each direction
  kAdapter,  // between a device and other hosts, in each direction
  kHost,     // between a host and all others, in each direction
  kCopy,     // inside a device's memory
  kMoves,    // a fixed time for each move that a device takes part in
};
inline constexpr size_t kLinks = 5;
std::string_view name_of(Link link);  // "device", "adapter", "host", "copy", "moves"

// 0 means that a link is not counted.
struct LinkSpeeds {
  // Bytes a second, by link; of kMoves, moves a second.
  std::array<int64_t, kLinks> each{};
  double latency = 0;  // seconds until a move begins

  int64_t of(Link link) const { return each[static_cast<size_t>(link)]; }
};

// Reads KEY=VALUE separated by commas, such as "device=450,adapter=50,host=400,latency=5".
// Values are gigabytes (10^9) a second, and microseconds for `latency` and `move`, the time
// of one move. Fails, naming the key, on a key that is unknown or repeated, and on a value
// that is not above 0.
Result<LinkSpeeds> parse_speeds(std::string_view text);

struct Cost {
  double seconds = 0;  // the busiest link's, and the latency of the longest chain
  Link busiest = Link::kHost;
  std::array<double, kLinks> each{};  // how long each kind of link is busy, at most
  int64_t depth = 0;                  // moves in the longest chain
  // No plan is faster, as each host must get so many bytes from others.
  double least = 0;
};

Cost cost_of(const Plan& plan, const Collection& target, const LinkSpeeds& speeds);

}  // namespace holdfast

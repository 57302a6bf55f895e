// A change of parallel configuration, from its description to its plan: what the command
// line and Python ask for.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "holdfast/base/json_value.h"
#include "holdfast/models/build.h"
#include "holdfast/plan/placement.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

// So many hosts with so many devices each.
struct HostGrid {
  uint32_t hosts = 1;
  uint32_t devices = 1;
  friend bool operator==(const HostGrid&, const HostGrid&) = default;
};

// Reads "4x4". Fails on anything else, and on zero or more than 2^20 devices.
Result<HostGrid> parse_hosts(std::string_view text);

struct ResizeRequest {
  Model model;
  Parallel from;
  Parallel to;
  Training training{};
  // Without it: hosts of 8 devices, as many as the larger side needs.
  std::optional<HostGrid> hosts{};
  // Choose the devices of the new positions by what they hold; else position p is on
  // device p, on both sides.
  bool place = false;
};

struct Resize {
  Topology topology;
  std::vector<Holder> devices;
  Collection source;
  Collection target;
  std::optional<Placement> placement;
  Plan plan;
};

// Fails as build_collection, place and plan do.
Result<Resize> plan_resize(const ResizeRequest& request);

// {"from": ..., "to": ..., "hosts": ..., "state": bytes, "placement": ..., and the plan's}
OrderedJson to_json(const ResizeRequest& request, const Resize& resize);

}  // namespace holdfast

// Plans a change of the parallel configuration from its description, for the command
// line and for Python.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "holdfast/base/json_fields.h"
#include "holdfast/env/env.h"
#include "holdfast/models/build.h"
#include "holdfast/plan/cost.h"
#include "holdfast/plan/placement.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

// Hosts that all have the same number of devices.
struct HostGrid {
  uint32_t hosts = 1;
  uint32_t devices = 1;  // on each host
  friend bool operator==(const HostGrid&, const HostGrid&) = default;
};

// Reads HOSTSxDEVICES, such as "4x8". Fails on other text, and on zero or more than
// 2^20 devices in all.
Result<HostGrid> parse_hosts(std::string_view text);

struct ResizeRequest {
  Model model;
  Parallel from;
  Parallel to;
  Training training{};
  // If not given: hosts of 8 devices, as many as the larger configuration needs.
  std::optional<HostGrid> hosts{};
  // If true, place() chooses the device of each new position by what the devices hold.
  // If false, position p is on device p before and after.
  bool place = false;
  std::optional<LinkSpeeds> speeds{};  // if given, the cost is computed
};

struct Resize {
  Topology topology;
  std::vector<Holder> devices;
  Collection source;
  Collection target;
  std::optional<Placement> placement;
  Plan plan;
  std::optional<Cost> cost;
};

// A request in the words of a user. Empty words mean the defaults of ResizeRequest.
struct ResizeWords {
  // The name of a built-in model, or the path of a Hugging Face config.json, of its folder
  // or of a model as JSON (model_json.h).
  std::string model;
  std::string from;  // such as "tp=4,pp=2,dp=1"
  std::string to;
  std::string hosts{};     // such as "4x8"
  std::string training{};  // such as "mixed-adam"
  std::string speeds{};    // such as "device=450,host=400" (plan/cost.h)
  bool place = false;
  // The text of a model as JSON. If it is given, `model` is its name in messages.
  std::string description{};
};

// Fails with kNotFound if there is no such model, and with kInvalid on words that
// cannot be read.
Result<ResizeRequest> read_resize(Env& env, const ResizeWords& words);

// Fails like build_collection, place and plan.
Result<Resize> plan_resize(const ResizeRequest& request);

// The members "from", "to", "hosts", "state" (bytes), "placement", "cost" of an object,
// followed by those of the plan (plan_json.h).
void put_members(FieldWriter& field, const ResizeRequest& request, const Resize& resize);

// The plan between the layouts of two files (collection_json.h).
struct LayoutPlan {
  Topology topology;
  Plan plan;
};
Result<LayoutPlan> plan_layout_files(Env& env, const Path& from, const Path& to);

}  // namespace holdfast

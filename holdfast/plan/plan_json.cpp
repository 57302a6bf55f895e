#include "holdfast/plan/plan_json.h"

#include "holdfast/base/json.h"

namespace holdfast {

OrderedJson to_json(const Figures& f) {
  return {{"needed", f.needed},
          {"in_place", f.in_place},
          {"copied", f.copied},
          {"moved", f.moved},
          {"moved_bound", f.moved_bound},
          {"crossing", f.crossing},
          {"crossing_bound", f.crossing_bound},
          {"forwarded", f.forwarded},
          {"egress_ns", f.egress_ns},
          {"egress_bound_ns", f.egress_bound_ns},
          {"extra_memory", f.extra_memory},
          {"extra_memory_by_tensor", f.extra_memory_by_tensor}};
}

OrderedJson to_json(const Plan& plan, const Topology& topology) {
  OrderedJson json{{"figures", to_json(plan.figures)}, {"moves", plan.moves.size()}};
  json["assumed"] = {{"memory_bandwidth", topology.memory_bandwidth},
                     {"file_bandwidth", topology.file_bandwidth}};
  json["links"] = OrderedJson::array();
  for (const LinkLoad& link : plan.links) {
    json["links"].push_back({{"from", topology.hosts[link.from].name},
                             {"to", topology.hosts[link.to].name},
                             {"bytes", link.bytes}});
  }
  json["holders"] = OrderedJson::array();
  for (size_t h = 0; h < plan.holders.size(); ++h) {
    const HolderLoad& load = plan.loads[h];
    json["holders"].push_back({{"name", plan.holders[h].name},
                               {"host", topology.hosts[plan.holders[h].host].name},
                               {"sent", load.sent},
                               {"forwarded", load.forwarded},
                               {"received", load.received}});
  }
  return json;
}

OrderedJson to_json(const Placement& placement, const std::vector<Holder>& devices) {
  OrderedJson released = OrderedJson::array();
  for (const uint32_t d : placement.released) released.push_back(devices[d].name);
  return {{"device_of_position", placement.device_of_position},
          {"released", released},
          {"kept", placement.kept},
          {"kept_bound", placement.kept_bound},
          {"host_rule_cost", placement.kept_bound - placement.kept},
          {"exact", placement.exact}};
}

}  // namespace holdfast

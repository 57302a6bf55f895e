#include "holdfast/plan/plan_json.h"

namespace holdfast {

void put_members(FieldWriter& field, const Plan& plan, const Topology& topology) {
  field("figures", plan.figures);
  field("moves", plan.moves.size());
  field.object("assumed", [&](FieldWriter& assumed) {
    assumed("memory_bandwidth", topology.memory_bandwidth);
    assumed("file_bandwidth", topology.file_bandwidth);
  });
  field.list("links", plan.links, [&](FieldWriter& each, const LinkLoad& link) {
    each("from", topology.hosts[link.from].name);
    each("to", topology.hosts[link.to].name);
    each("bytes", link.bytes);
  });
  size_t h = 0;
  field.list("holders", plan.holders, [&](FieldWriter& each, const Holder& holder) {
    const HolderLoad& load = plan.loads[h++];
    each("name", holder.name);
    each("host", topology.hosts[holder.host].name);
    each("sent", load.sent);
    each("forwarded", load.forwarded);
    each("received", load.received);
  });
}

void put_members(FieldWriter& field, const Placement& placement,
                 const std::vector<Holder>& devices) {
  std::vector<std::string> released;
  for (const uint32_t d : placement.released) released.push_back(devices[d].name);
  field("device_of_position", placement.device_of_position);
  field("released", released);
  field("kept", placement.kept);
  field("kept_bound", placement.kept_bound);
  field("host_rule_cost", placement.kept_bound - placement.kept);
  field("exact", placement.exact);
}

void put_members(FieldWriter& field, const Cost& cost) {
  field("seconds", cost.seconds);
  field("busiest", name_of(cost.busiest));
  for (size_t i = 0; i < kLinks; ++i) field(name_of(static_cast<Link>(i)), cost.each[i]);
  field("depth", cost.depth);
  field("least", cost.least);
}

}  // namespace holdfast

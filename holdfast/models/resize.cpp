#include "holdfast/models/resize.h"

#include <algorithm>
#include <charconv>

#include "holdfast/base/checked.h"
#include "holdfast/base/json.h"
#include "holdfast/plan/plan_json.h"

namespace holdfast {
namespace {

constexpr uint32_t kDevicesAHost = 8;

std::optional<uint32_t> parse_number(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

HostGrid grid_for(const ResizeRequest& request) {
  if (request.hosts) return *request.hosts;
  const auto most =
      static_cast<uint32_t>(std::max(request.from.positions(), request.to.positions()));
  const uint32_t each = std::min(most, kDevicesAHost);
  return {divide_up(most, each), each};
}

}  // namespace

Result<HostGrid> parse_hosts(std::string_view text) {
  const size_t cross = text.find('x');
  if (cross != std::string_view::npos) {
    const auto hosts = parse_number(text.substr(0, cross));
    const auto devices = parse_number(text.substr(cross + 1));
    if (hosts && devices && *hosts > 0 && *devices > 0 &&
        uint64_t{*hosts} * *devices <= uint64_t{kMaxPositions}) {
      return HostGrid{*hosts, *devices};
    }
  }
  return invalid(
      "hosts \"{}\": cannot be read; expected HOSTSxDEVICES such as 4x8, at most {} "
      "devices",
      text, kMaxPositions);
}

Result<Resize> plan_resize(const ResizeRequest& request) {
  HOLDFAST_TRY(check(request.from).within("from"));
  HOLDFAST_TRY(check(request.to).within("to"));
  const HostGrid grid = grid_for(request);
  Topology topology = Topology::uniform(grid.hosts);
  std::vector<Holder> devices = make_devices(grid.hosts, grid.devices);
  const auto build = [&](const Parallel& parallel, std::span<const uint32_t> on) {
    return build_collection(request.model, parallel, request.training, devices, on);
  };
  Collection source = HOLDFAST_TRY(build(request.from, {}).within("from"));
  Collection target = HOLDFAST_TRY(build(request.to, {}).within("to"));
  std::optional<Placement> placement;
  if (request.place) {
    const PlaceOptions options{
        .positions = static_cast<uint32_t>(request.to.positions()),
        .group = static_cast<uint32_t>(request.to.tp)};
    placement = HOLDFAST_TRY(place(source, target, topology, devices, options));
    target = HOLDFAST_TRY(build(request.to, placement->device_of_position));
  }
  Plan made = HOLDFAST_TRY(plan(source, target, topology));
  return Resize{std::move(topology), std::move(devices),   std::move(source),
                std::move(target),   std::move(placement), std::move(made)};
}

OrderedJson to_json(const ResizeRequest& request, const Resize& resize) {
  const HostGrid grid = grid_for(request);
  OrderedJson json{{"model", request.model.name},
                   {"from", to_string(request.from)},
                   {"to", to_string(request.to)},
                   {"hosts", fmt::format("{}x{}", grid.hosts, grid.devices)},
                   {"tensors", resize.source.tensors().size()},
                   {"state", resize.source.bytes()}};
  if (resize.placement) {
    json["placement"] = to_json(*resize.placement, resize.devices);
  }
  json.update(to_json(resize.plan, resize.topology));
  return json;
}

}  // namespace holdfast

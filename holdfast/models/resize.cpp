#include "holdfast/models/resize.h"

#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/base/number_text.h"
#include "holdfast/models/families.h"
#include "holdfast/models/hf_config.h"
#include "holdfast/models/model_json.h"
#include "holdfast/plan/plan_json.h"
#include "holdfast/state/collection_json.h"

namespace holdfast {
namespace {

constexpr uint32_t kDevicesAHost = 8;
constexpr int64_t kConfigLimit = 256 << 20;
constexpr int64_t kLayoutLimit = int64_t{1} << 30;

Result<Model> read_model(Env& env, const std::string& name) {
  Result<Model> known = find_model(name);
  if (known.ok()) return known;
  const auto info = env.info(name);
  if (!info.ok()) return known;
  const Path path = info->folder ? Path(name) / "config.json" : Path(name);
  const std::string text = HOLDFAST_TRY(env.read_text(path, kConfigLimit));
  const auto config = HOLDFAST_TRY(JsonDocument::parse(text, path.native()));
  return is_model_json(config.root()) ? model_from_json(config.root())
                                      : model_from_config(config.root());
}

Result<Model> read_model(Env& env, const ResizeWords& words) {
  if (words.description.empty()) return read_model(env, words.model);
  const auto json = HOLDFAST_TRY(JsonDocument::parse(words.description, words.model));
  return model_from_json(json.root());
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
    const auto hosts = number_in<uint32_t>(text.substr(0, cross));
    const auto devices = number_in<uint32_t>(text.substr(cross + 1));
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

Result<ResizeRequest> read_resize(Env& env, const ResizeWords& words) {
  ResizeRequest request;
  request.model = HOLDFAST_TRY(read_model(env, words));
  request.from = HOLDFAST_TRY(parse_parallel(words.from).within("from"));
  request.to = HOLDFAST_TRY(parse_parallel(words.to).within("to"));
  if (!words.training.empty()) {
    request.training = HOLDFAST_TRY(find_training(words.training));
  }
  if (!words.hosts.empty()) request.hosts = HOLDFAST_TRY(parse_hosts(words.hosts));
  if (!words.speeds.empty()) {
    request.speeds = HOLDFAST_TRY(parse_speeds(words.speeds));
  }
  request.place = words.place;
  return request;
}

Result<LayoutPlan> plan_layout_files(Env& env, const Path& from, const Path& to) {
  LayoutPlan made;
  const auto read = [&](const Path& path) -> Result<Collection> {
    const std::string text = HOLDFAST_TRY(env.read_text(path, kLayoutLimit));
    return parse_collection(text, path.native(), made.topology);
  };
  const Collection source = HOLDFAST_TRY(read(from));
  const Collection target = HOLDFAST_TRY(read(to));
  made.plan = HOLDFAST_TRY(plan(source, target, made.topology).within(from.native()));
  return made;
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
  std::optional<Cost> cost;
  if (request.speeds) cost = cost_of(made, target, *request.speeds);
  return Resize{std::move(topology),  std::move(devices), std::move(source),
                std::move(target),    std::move(placement), std::move(made),
                cost};
}

void put_members(FieldWriter& field, const ResizeRequest& request, const Resize& resize) {
  const HostGrid grid = grid_for(request);
  field("model", request.model.name);
  field("from", to_string(request.from));
  field("to", to_string(request.to));
  field("hosts", fmt::format("{}x{}", grid.hosts, grid.devices));
  field("tensors", resize.source.tensors().size());
  field("state", resize.source.bytes());
  if (resize.placement) {
    field.object("placement", [&](FieldWriter& placement) {
      put_members(placement, *resize.placement, resize.devices);
    });
  }
  if (resize.cost) {
    field.object("cost", [&](FieldWriter& cost) { put_members(cost, *resize.cost); });
  }
  put_members(field, resize.plan, resize.topology);
}

}  // namespace holdfast

// Plans a move between two layouts with an installed Holdfast, through its one header.
#include <holdfast/holdfast.h>

#include <cstdio>

namespace {

using namespace holdfast;

// Eight floats, cut evenly over the devices.
Result<Collection> cut_over(std::vector<Holder> devices) {
  std::vector<Tensor> tensors{{.name = "w", .dtype = Dtype::kF32, .shape = {8}}};
  const int64_t part = 8 / static_cast<int64_t>(devices.size());
  const auto count = static_cast<HolderId>(devices.size());
  LayoutBuilder builder(tensors, std::move(devices));
  for (HolderId d = 0; d < count; ++d) {
    builder.add(0, Box{{d * part, (d + 1) * part}}, d, /*offset=*/0);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(std::move(tensors), std::move(layout));
}

Result<int64_t> bytes_to_move() {
  const Collection one = HOLDFAST_TRY(cut_over(make_devices(1, 1)));
  const Collection two = HOLDFAST_TRY(cut_over(make_devices(1, 2)));
  return HOLDFAST_TRY(plan(one, two, Topology::uniform(1))).figures.moved;
}

}  // namespace

int main() {
  const Result<int64_t> moved = bytes_to_move();
  if (!moved.ok()) return 1;
  std::printf("%lld bytes move\n", static_cast<long long>(*moved));
  return 0;
}

#include "holdfast/models/convnets.h"

#include <array>

namespace holdfast {
namespace {

Parameter& add(Model& model, std::string name, Shape shape, Site site, int64_t layer) {
  Parameter parameter;
  parameter.tensor.name = std::move(name);
  parameter.tensor.shape = shape;
  parameter.site = site;
  parameter.layer = layer;
  model.parameters.push_back(std::move(parameter));
  return model.parameters.back();
}

void add_batch_norm(Model& model, const std::string& name, int64_t channels, Site site,
                    int64_t layer) {
  add(model, name + ".weight", {channels}, site, layer);
  add(model, name + ".bias", {channels}, site, layer);
  for (const char* what : {".running_mean", ".running_var"}) {
    add(model, name + what, {channels}, site, layer).tensor.role = Role::kBuffer;
  }
  Tensor& batches = add(model, name + ".num_batches_tracked", {}, site, layer).tensor;
  batches.role = Role::kCounter;
  batches.dtype = Dtype::kI64;
}

// Adds a bottleneck block: a 1x1 convolution down to `width` channels, a 3x3 one, and a
// 1x1 one up to four times `width`. The first block of a group also projects its input.
void add_bottleneck(Model& model, const std::string& name, int64_t layer, int64_t in,
                    int64_t width, bool project) {
  const auto conv = [&](const std::string& which, Shape shape) {
    add(model, name + which + ".weight", shape, Site::kLayer, layer);
  };
  const auto norm = [&](const std::string& which, int64_t channels) {
    add_batch_norm(model, name + which, channels, Site::kLayer, layer);
  };
  conv(".conv1", {width, in, 1, 1});
  norm(".bn1", width);
  conv(".conv2", {width, width, 3, 3});
  norm(".bn2", width);
  conv(".conv3", {4 * width, width, 1, 1});
  norm(".bn3", 4 * width);
  if (!project) return;
  conv(".downsample.0", {4 * width, in, 1, 1});
  norm(".downsample.1", 4 * width);
}

}  // namespace

Model make_resnet50() {
  Model model;
  model.name = "resnet50";
  add(model, "conv1.weight", {64, 3, 7, 7}, Site::kFirst, 0);
  add_batch_norm(model, "bn1", 64, Site::kFirst, 0);
  constexpr std::array<int, 4> kBlocks{3, 4, 6, 3};
  int64_t in = 64;
  for (size_t group = 0; group < kBlocks.size(); ++group) {
    const int64_t width = int64_t{64} << group;
    for (int block = 0; block < kBlocks[group]; ++block) {
      add_bottleneck(model, fmt::format("layer{}.{}", group + 1, block), model.layers++,
                     in, width, block == 0);
      in = 4 * width;
    }
  }
  add(model, "fc.weight", {1000, in}, Site::kLast, 0);
  add(model, "fc.bias", {1000}, Site::kLast, 0);
  return model;
}

Model make_vgg16() {
  Model model;
  model.name = "vgg16";
  // Output channels. 0 is a pooling layer: it has no tensors, but counts in the names.
  constexpr std::array<int64_t, 18> kFeatures{
      64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0};
  int64_t in = 3;
  int module = 0;
  for (const int64_t out : kFeatures) {
    if (out > 0) {
      const std::string name = fmt::format("features.{}", module);
      add(model, name + ".weight", {out, in, 3, 3}, Site::kLayer, model.layers);
      add(model, name + ".bias", {out}, Site::kLayer, model.layers++);
      in = out;
    }
    module += out > 0 ? 2 : 1;  // a convolution is followed by its ReLU
  }
  const auto dense = [&](const std::string& name, int64_t out, int64_t inputs) {
    add(model, name + ".weight", {out, inputs}, Site::kLayer, model.layers);
    add(model, name + ".bias", {out}, Site::kLayer, model.layers++);
    return &model.parameters[model.parameters.size() - 2];
  };
  Parameter* first = dense("classifier.0", 4096, in * 7 * 7);
  first[0].cut = first[1].cut = Cut::kAxis;
  Parameter* second = dense("classifier.3", 4096, 4096);
  second->cut = Cut::kAxis;
  second->axis = 1;
  dense("classifier.6", 1000, 4096);
  return model;
}

}  // namespace holdfast

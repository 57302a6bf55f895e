// Builds the collection of a training job: the tensors of a model, cut by a parallel
// configuration, with the optimizer state of a training regime, on given devices.
//
// Optimizer state is cut like its parameter: "<name>.master", "<name>.exp_avg",
// "<name>.exp_avg_sq" and "<name>.momentum" have the parameter's shape, cut and
// aliases. ZeRO cuts further: zero >= 1 divides optimizer state over the replicas, and
// zero = 3 divides the parameter too. The replicas of an expert's parameter are the
// positions with the same expert-parallel coordinate. Buffers and counters are on every
// position of their stage.
//
// In a rank's memory, tensor i starts at the same byte on every rank: at the sum of the
// full sizes of the tensors before it, each rounded up to 64. The pieces that the rank
// has of the tensor lie there one after the other. So there are gaps between tensors,
// and a box that stays on its rank after a change of configuration can be found in
// place.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "holdfast/models/model.h"
#include "holdfast/models/parallel.h"
#include "holdfast/models/training.h"
#include "holdfast/state/collection.h"

namespace holdfast {

// A collection has at most about this many pieces. They take some gigabytes of memory.
inline constexpr int64_t kMaxPieces = int64_t{1} << 25;

// Position p of the configuration is on devices[device_of_position[p]]; with an empty
// span it is on devices[p]. Devices without a position hold nothing. Fails with
// kInvalid on a configuration that check() refuses or that does not fit the model, on
// more positions than devices, and on two positions on one device; with kUnsupported on
// tens of millions of pieces.
Result<Collection> build_collection(const Model& model, const Parallel& parallel,
                                    const Training& training,
                                    std::vector<Holder> devices,
                                    std::span<const uint32_t> device_of_position = {});

// The same for state that is known tensor by tensor. The function returns the parameter's
// own tensor and then its optimizer state, all with the parameter's shape.
using StatesOf = std::function<std::vector<Tensor>(size_t parameter)>;
// Called before each parameter is cut, which takes long for very many positions.
using CutProgress = std::function<void(int64_t done, int64_t total)>;
Result<Collection> build_collection_of(
    const Model& model, const Parallel& parallel, const StatesOf& states_of,
    std::vector<Holder> devices, std::span<const uint32_t> device_of_position = {},
    const CutProgress& progress = {});

}  // namespace holdfast

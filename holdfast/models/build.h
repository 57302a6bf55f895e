// Builds the collection of a training job: a model, cut by a parallel configuration,
// with the optimizer state of a training regime, on given devices.
//
// Optimizer state follows its parameter by construction: "<name>.master",
// "<name>.exp_avg", "<name>.exp_avg_sq" and "<name>.momentum" have the parameter's shape,
// cut and ties, refined by ZeRO (zero >= 1 divides them over the replicas, zero = 3 the parameter
// too). The replicas of an expert's parameter are those of its expert-parallel
// coordinate. Buffers and counters are on every position of their stage.
//
// A rank's memory: tensor i starts at the same byte on every rank (the sum of the full
// sizes before it, each rounded up to 64), and what the rank has of it lies there one
// piece after the other. Addresses are therefore sparse, and a box that stays where it
// is after a change of configuration is seen to be in place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/models/model.h"
#include "holdfast/models/parallel.h"
#include "holdfast/models/training.h"
#include "holdfast/state/collection.h"

namespace holdfast {

// Position p of the configuration sits on devices[device_of_position[p]]; an empty span
// is the identity. Devices without a position hold nothing. Fails on a configuration
// that check() refuses or that does not suit the model, on more positions than devices,
// and on two positions on one device; with kUnsupported on tens of millions of pieces.
Result<Collection> build_collection(const Model& model, const Parallel& parallel,
                                    const Training& training,
                                    std::vector<Holder> devices,
                                    std::span<const uint32_t> device_of_position = {});

}  // namespace holdfast

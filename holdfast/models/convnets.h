// The two convolutional networks of checkpointing studies, with torchvision's names and
// shapes, for 1000 classes.
#pragma once

#include "holdfast/models/model.h"

namespace holdfast {

// Its 16 bottleneck blocks are the layers. Nothing in it can be cut by tensor
// parallelism.
Model make_resnet50();
// Each convolution and each fully connected layer is a layer (16). Of these the two
// large fully connected ones, classifier.0 (by rows) and classifier.3 (by columns), can
// be cut.
Model make_vgg16();

}  // namespace holdfast

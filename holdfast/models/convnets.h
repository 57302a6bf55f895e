// The two convolutional networks of checkpointing studies, with torchvision's names and
// shapes, for 1000 classes.
#pragma once

#include "holdfast/models/model.h"

namespace holdfast {

// The layers are its 16 bottleneck blocks. Tensor parallelism can cut none of its
// tensors.
Model make_resnet50();
// Each convolution and each fully connected layer is a layer; there are 16. Tensor
// parallelism can cut only the two large fully connected ones: classifier.0 by rows and
// classifier.3 by columns.
Model make_vgg16();

}  // namespace holdfast

// Digests of plans and collections, by which ranks find out that they have the same.
#pragma once

#include "holdfast/base/xxh3.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

// The digest of the whole plan, including the numbers of holders, tensors and pieces.
Digest128 fingerprint(const Plan& plan);
// The digest of the tensors, the holders, and which holder has which box.
Digest128 fingerprint(const Collection& collection);

}  // namespace holdfast

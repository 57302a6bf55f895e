// Compiled instead of uring.cpp in a build without liburing: there is never a ring.
#include "holdfast/env/uring_internal.h"

namespace holdfast {

std::unique_ptr<Uring> make_uring(unsigned) { return nullptr; }

}  // namespace holdfast

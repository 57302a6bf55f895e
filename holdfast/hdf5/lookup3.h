// Bob Jenkins's hash lookup3, the checksum of HDF5's newer metadata.
#pragma once

#include <cstdint>

#include "holdfast/base/bytes.h"

namespace holdfast::hdf5 {

uint32_t lookup3(ByteView bytes);

}  // namespace holdfast::hdf5

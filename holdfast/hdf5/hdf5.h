// HDF5 files as Keras, Chainer, h5py and netCDF-4 write them.
//
// Read are the structures of HDF5 1.6 (superblock 0, groups with symbol tables) and of
// 1.8 (superblock 2, object headers with checksums, fractal heaps); contiguous, compact
// and chunked datasets with B-trees of version 1; the filters deflate, shuffle and
// fletcher32. Refused, with a sentence that names structure and object: chunk indexes
// of HDF5 1.10, virtual datasets, links and elements in other files, other filters.
//
// A tensor is called by its path without the first slash. Hard and soft links to the
// same dataset are its aliases. Strings, attributes and datasets without a value become
// objects: {"attributes": {path: {name: value}}, "values": {path: value}}.
//
// We have a reader of our own, and do not use libhdf5, because files may come from
// anywhere: every count, address and size is checked.
#pragma once

#include <memory>

#include "holdfast/contents/contents.h"
#include "holdfast/env/env.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// Whether a file has the mark of HDF5 at byte 0, or at 512, 1024, 2048 and so on,
// behind a block of the user's.
bool looks_like_hdf5(const Source& source);

// Opens a file. Reads all its metadata, but no elements, except strings. Chunks are
// decoded when they are read, from any number of threads. Fails with kCorrupt for
// damaged files and with kUnsupported for what is listed above.
Result<Contents> open_hdf5(std::shared_ptr<const Source> source);

}  // namespace holdfast

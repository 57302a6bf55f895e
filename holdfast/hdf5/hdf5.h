// HDF5 files as Keras, Chainer, h5py and netCDF-4 write them.
//
// Read are the structures of HDF5 1.6 (superblock 0, groups with symbol tables) and of
// 1.8 (superblock 2, object headers with checksums, fractal heaps); contiguous, compact
// and chunked datasets with all indexes of chunks, also those of HDF5 1.10 and later; the
// filters deflate, lzf, shuffle and fletcher32. Left out, with a sentence that names
// structure and object: virtual datasets, links and elements in other files, other
// filters, elements that no tensor can hold.
//
// A tensor is called by its path without the first slash. Hard and soft links to the
// same dataset are its aliases. Strings, attributes and datasets without a value become
// objects: {"attributes": {path: {name: value}}, "values": {path: value}}.
//
// We have a reader of our own, and do not use libhdf5, because files may come from
// anywhere: every count, address and size is checked.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/env.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

class FileEdit;

// Whether a file has the mark of HDF5 at byte 0, or at 512, 1024, 2048 and so on,
// behind a block of the user's.
bool looks_like_hdf5(const Source& source);

// Opens a file. Reads all its metadata, but no elements, except strings. Chunks are
// decoded when they are read, from any number of threads. Fails with kCorrupt for
// damaged files and with kUnsupported for what is listed above.
Result<Contents> open_hdf5(std::shared_ptr<const Source> source);

// Writes a file that every version of HDF5 reads: each tensor is a contiguous dataset
// at the path that it is called by, and its aliases are hard links. Attributes, texts,
// soft links, empty groups and names of enumerations are written as HDF5 has them. What
// HDF5 cannot hold is kept in attributes of the root (contents/side_metadata.h): other
// objects, floats of one byte, which are stored as integers, and names that cannot be
// paths. BF16 is stored as Keras does it.
Result<void> write_hdf5(Sink& sink, const Contents& contents);
// How many bytes write_hdf5() writes.
Result<int64_t> measure_hdf5(const Contents& contents);

// Plans the change of bits (contents/patch.h). Elements that lie plainly in the file
// change in place; a chunk with filters is encoded anew. Fails with kUnsupported for
// elements that were never written.
Result<Patch> plan_patch_hdf5(Env& env, const Path& path, std::span<const Flip> flips,
                              Checksums checksums);

// An HDF5 file that is edited, or a part of an edited file that is one.
struct Hdf5Edit {
  FileEdit* file = nullptr;
  int64_t begin = 0;     // where the HDF5 file begins in it
  bool may_grow = true;  // whether the HDF5 file ends where the edited file ends
};
// The same for such a file. `source` are the bytes of the HDF5 file.
Result<void> edit_hdf5(const Hdf5Edit& edit, std::shared_ptr<const Source> source,
                       std::span<const Flip> flips, Checksums checksums);

// Reads all elements and checks those of chunks with checksums. `file` is the name that
// the report calls the file by.
Result<FormatReport> verify_hdf5(std::shared_ptr<const Source> source,
                                 const std::string& file, const Progress& progress);

}  // namespace holdfast

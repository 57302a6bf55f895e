// NumPy's files: .npz, a zip archive with one .npy record for each array, and .npy.
//
// Records may be stored or deflated. Arrays may be big-endian and in Fortran order.
// Arrays of Python objects are pickles: reading them would run code. They are left out by
// name (contents.left_out), as are text, dates, records and others that are no numbers. A
// .npy file of such an array is refused. Only the array of Python objects that stands for
// None is understood, because Chainer writes it for parameters that have no value yet;
// contents.objects then has {"name": None}.
//
// An .npz file is written with stored records. What NumPy has no words for is kept as text in
// records of their own, which NumPy shows as arrays of bytes (contents/side_metadata.h).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// True for the names of the records in an archive of NumPy. An archive without records is
// one of no arrays.
bool is_npz_archive(std::span<const std::string> names);
// True for the first bytes of a .npy file.
bool is_npy(ByteView head);

// Reads the directory and the header of each array. Stored arrays are checked against
// their CRC as those of torch are (contents.h); deflated ones when their last byte is
// read.
Result<Contents> open_npz(std::shared_ptr<const Source> source);
// A .npy file has one tensor, which is called "tensor".
Result<Contents> open_npy(std::shared_ptr<const Source> source);

// Stream the file in bounded memory. A .npy file holds one array and nothing beside it:
// write_npy() fails with kUnsupported unless there is exactly one tensor, of a dtype that
// NumPy has.
Result<void> write_npz(Sink& sink, const Contents& contents);
Result<void> write_npy(Sink& sink, const Contents& contents);

Result<FormatReport> verify_npz(std::shared_ptr<const Source> source,
                                const Progress& progress = {});

// Plan patches (Format::plan_patch). A stored array changes in place, with its CRCs. A
// deflated one is encoded anew and goes behind the last record, with a new directory;
// its old bytes stay in the file, unused. So flipping twice gives the old values but not
// the old file; the inverse patch does.
Result<Patch> plan_npz_patch(Env& env, const Path& path, std::span<const Flip> flips,
                             Checksums checksums);
Result<Patch> plan_npy_patch(Env& env, const Path& path, std::span<const Flip> flips,
                             Checksums checksums);

}  // namespace holdfast

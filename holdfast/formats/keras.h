// Keras's .keras files: a zip archive of config.json, metadata.json and the weights in an
// HDF5 file, which is read through a slice of the archive. They can be patched, and
// written from contents that have the two JSON files, because a model is more than its
// weights.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// Whether an archive with these records is a .keras file.
bool is_keras_archive(std::span<const std::string> names);

// The JSON files of the archive are the metadata of the contents, by their names.
Result<Contents> open_keras(std::shared_ptr<const Source> source);

// Writes a file. Fails with kUnsupported if the metadata of the contents has no config.json
// or no metadata.json.
Result<void> write_keras(Sink& sink, const Contents& contents);

// Plans a patch (Format::plan_patch), with the CRC of the archive. Fails with
// kUnsupported if the HDF5 file would have to grow, or if it is deflated.
Result<Patch> plan_keras_patch(Env& env, const Path& path, std::span<const Flip> flips,
                               Checksums checksums);

// Finds all damage (Format::verify).
Result<FormatReport> verify_keras(std::shared_ptr<const Source> source,
                                  const Progress& progress);

}  // namespace holdfast

// The formats that this build knows, and opening and writing files of any of them.
//
// A format is one entry of formats(). The entry says how the format is recognised by the
// bytes of a file, and how it is opened, written, verified and patched. To add a format, add a
// source file and an entry: the conformance suite then tests it, and open_file(),
// convert() and diff() support it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/env.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// What is known of a file or folder before it is opened. Formats are recognised by it.
struct FileProbe {
  Path path;
  bool folder = false;
  Bytes head{};                      // the first bytes of a file, at most kProbeBytes
  std::vector<std::string> names{};  // the names in a folder
  // The file. Null for a folder. Shared, because FileProbe can be copied.
  std::shared_ptr<const Source> source{};
  // The names of the records, if the file is a zip archive whose directory can be read.
  std::optional<std::vector<std::string>> records{};

  // Bytes of the file at an offset, or before its end if the offset is negative. Empty if
  // the file does not have all of them.
  Bytes bytes_at(int64_t offset, int64_t count) const;
  // Whether the file begins like a zip archive.
  bool zip() const;
};

inline constexpr int64_t kProbeBytes = 4096;

struct Format {
  std::string_view name;  // the value of --format, such as "safetensors"
  std::string_view what;  // a description for people
  // Extensions with their dot. A new file with such a name gets this format. Empty for
  // formats that are folders.
  std::vector<std::string_view> extensions;
  bool folder = false;
  // The files that belong to a checkpoint of several files which one of them names, with
  // that one first. Null if the file or folder itself is all of it.
  Result<std::vector<Path>> (*list_files)(Env& env, const Path& path) = nullptr;
  // Whether a file holds exactly one tensor, without its name.
  bool one_tensor = false;
  // What is the same after it was written and opened again. It means nothing if the format
  // is not written.
  bool keeps_objects = true;
  bool keeps_aliases = true;
  bool keeps_metadata = true;
  bool keeps_links = false;  // soft links (Hdf5Details)
  // Whether contents without any tensor can be written.
  bool keeps_empty = true;
  bool (*keeps_dtype)(Dtype dtype) = [](Dtype) { return true; };

  bool (*recognises)(const FileProbe& probe) = nullptr;
  // Whether only contents can be written that were read from a file of the same format,
  // because such a file has more than tensors: the model, for example.
  bool only_again = false;
  // Opens a file: reads headers, but no tensors. The Env must outlive the contents.
  Result<Contents> (*open)(Env& env, const Path& path) = nullptr;
  // Writes a new file or folder and syncs it, except for its own name. Fails with
  // kConflict if it exists. Null if the format can only be read.
  Result<void> (*write)(Env& env, const Path& path, const Contents& contents) = nullptr;
  // The same into a sink. Null for formats that are folders.
  Result<void> (*stream)(Sink& sink, const Contents& contents) = nullptr;
  // Computes which bytes the flips change, and changes nothing (contents/patch.h). Reads
  // no more than it must: the same for a large file as for a small one, unless the
  // format is compressed. Null if the format cannot be patched.
  Result<Patch> (*plan_patch)(Env& env, const Path& path, std::span<const Flip> flips,
                              Checksums checksums) = nullptr;
  // Reads everything and finds all damage. A failure says that the file cannot be read
  // or is not of this format; kCorrupt means that it is too damaged to go on. Null if
  // the format has no checksums: then opening checks all that can be checked.
  Result<FormatReport> (*verify)(Env& env, const Path& path,
                                 const Progress& progress) = nullptr;

  // Whether any contents can be written.
  bool can_write() const { return write != nullptr && !only_again; }
  bool can_patch() const { return plan_patch != nullptr; }
};

std::span<const Format> formats();
// Finds a format by its name. Fails with kUnsupported, listing all formats, if there is
// none.
Result<const Format*> find_format(std::string_view name);

// Finds the format of a file or folder by its contents and not by its name. (Only the
// index of a folder of shards is recognised by its name; it stands for the folder.)
// Fails with kUnsupported if no format recognises it.
Result<const Format*> format_of(Env& env, const Path& path);
// Chooses the format of a new file by its extension. A path that ends in '/' is a
// folder of safetensors files. Fails with kUnsupported, listing all formats, for any
// other name.
Result<const Format*> format_for(const Path& path);

// The file or folder that a path names. That is the path itself, or, if nothing is there,
// the index of the TensorFlow checkpoint whose prefix it is: "ck-12" stands for
// "ck-12.index". Fails with kNotFound if there is neither.
Result<Path> find_named(Env& env, const Path& path);

// Opens what a path names. Fails with kConflict if a patch of it was interrupted
// (contents/patch.h).
Result<Contents> open_file(Env& env, const Path& path);

// Computes which bytes the flips change (Format::plan_patch), and changes nothing. Fails
// with kUnsupported if the format cannot be patched.
Result<Patch> plan_patch(Env& env, const Path& path, std::span<const Flip> flips,
                         Checksums checksums);
// Undoes what a crash left of a patch of what the path names. Returns whether there was
// something to undo.
Result<bool> repair_file(Env& env, const Path& path, FileLocks& locks);

struct NewFileOptions {
  const Format* format = nullptr;  // null: format_for() the path
  // The name beside the path under which the file is written first, if the file system
  // has no files without a name. If empty, a hidden name with a random number is used.
  Path attempt{};
};

// Writes a new file or folder. Afterwards the whole target is there and durable, or
// nothing of it. Fails with kConflict if the target exists. If only the last step
// fails, the sync of the folder above, the target is there, but may not be durable. A
// killed process may leave the attempt, if the target is a folder or the file system
// has no files without a name.
Result<void> write_file(Env& env, const Path& path, const Contents& contents,
                        const NewFileOptions& options = {});
// The same for a folder that a function makes and fills, under the name `attempt`.
Result<void> write_new_folder(Env& env, const Path& path, const Path& attempt,
                              const std::function<Result<void>(const Path&)>& fill);

}  // namespace holdfast

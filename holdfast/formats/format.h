// The formats that this build knows, and files of any of them by path.
//
// A format is one entry of formats(): how it is recognised by its first bytes, opened and
// written. Adding one is a source file and a line there; the conformance suite then runs
// over it, and open_file, convert and compare know it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/formats/contents.h"

namespace holdfast {

// What tells formats apart without opening them.
struct Glance {
  Path path;
  bool folder = false;
  Bytes head{};                      // of a file: its first bytes, at most kGlanceBytes
  std::vector<std::string> names{};  // of a folder: what is in it
};

inline constexpr int64_t kGlanceBytes = 4096;

struct Format {
  std::string_view name;  // "safetensors": what --format takes
  std::string_view what;  // a few words for people
  // With the dot. A path that ends in one is written in this format; none for folders.
  std::vector<std::string_view> extensions;
  bool folder = false;
  // What survives being written and opened again.
  bool keeps_objects = false;
  bool keeps_ties = false;
  bool keeps_metadata = false;
  bool keeps_empty = true;  // no tensors at all
  bool (*keeps_dtype)(Dtype dtype) = nullptr;

  bool (*recognises)(const Glance& glance) = nullptr;
  // Reads headers, not tensors. The Env must outlive the contents.
  Result<Contents> (*open)(Env& env, const Path& path) = nullptr;
  // A new file or folder, synced but for its own name; kConflict if it exists. Null where
  // the format can only be read.
  Result<void> (*write)(Env& env, const Path& path, const Contents& contents) = nullptr;
  // The same into a sink; null for folders.
  Result<void> (*stream)(Sink& sink, const Contents& contents) = nullptr;

  bool can_write() const { return write != nullptr; }
};

std::span<const Format> formats();
// By name; kUnsupported, listing those there are, for another.
Result<const Format*> find_format(std::string_view name);

// The format of what is there, by its contents and not by its name (but the index of a
// folder, which stands for the folder, goes by its name). kUnsupported if none recognises
// it.
Result<const Format*> format_of(Env& env, const Path& path);
// The format that a new path asks for: by its extension, or a folder if it ends in '/'.
// kUnsupported, listing those there are, for another.
Result<const Format*> format_for(const Path& path);

Result<Contents> open_file(Env& env, const Path& path);
struct NewFileOptions {
  const Format* format = nullptr;  // null: that of the path
  // The name, beside the path, under which it is written where the file system has no
  // files without a name; empty: a hidden one with a random number.
  Path attempt{};
};

// Whatever happens, the path is there whole or not at all, and durable on success.
// kConflict if it exists. A failure leaves nothing, except one of the last step, the sync of
// the folder above: then the path is there. A process that is killed may leave the attempt,
// if it wrote a folder or could not write without a name.
Result<void> write_file(Env& env, const Path& path, const Contents& contents,
                        const NewFileOptions& options = {});

}  // namespace holdfast

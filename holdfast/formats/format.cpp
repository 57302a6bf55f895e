#include "holdfast/formats/format.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "holdfast/archive/zip_reader.h"
#include "holdfast/formats/dcp.h"
#include "holdfast/formats/foreign_folders.h"
#include "holdfast/formats/keras.h"
#include "holdfast/formats/keras_shards.h"
#include "holdfast/formats/npy.h"
#include "holdfast/formats/npz.h"
#include "holdfast/formats/safetensors.h"
#include "holdfast/formats/sharded_safetensors.h"
#include "holdfast/formats/torch_folder.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/hdf5/hdf5.h"
#include "holdfast/tensorflow/tensor_bundle.h"

namespace holdfast {
namespace {

// A safetensors file begins with the length of its header, which has a limit, and JSON.
bool is_safetensors(const FileProbe& probe) {
  if (probe.folder || probe.head.size() < 9) return false;
  const auto length = load_little_endian<uint64_t>(probe.head);
  const std::string_view text = text_of(probe.head).substr(8);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return length <= uint64_t{kMaxSafetensorsHeader} && first != text.npos &&
         text[first] == '{';
}

Result<void> stream_safetensors(Sink& sink, const Contents& contents) {
  return write_safetensors(sink, contents);
}

bool is_npz(const FileProbe& probe) {
  if (probe.records) return is_npz_archive(*probe.records);
  return probe.zip() && probe.path.native().ends_with(".npz");
}

// A zip archive whose directory cannot be read is damaged. Opening it as a file of torch
// says so, unless its name says that it is something else.
bool is_torch(const FileProbe& probe) {
  if (probe.records) return is_torch_archive(*probe.records);
  return probe.zip() || is_legacy_torch(probe.head);
}

bool is_torch_model_folder(const FileProbe& probe) {
  if (probe.folder) return is_torch_folder(probe.names);
  return probe.path.native().ends_with(kTorchIndexSuffix);
}

bool is_keras(const FileProbe& probe) {
  return probe.records && is_keras_archive(*probe.records);
}

bool is_keras_index(const FileProbe& probe) {
  return !probe.folder && probe.path.native().ends_with(kKerasIndexSuffix);
}

bool is_hdf5(const FileProbe& probe) {
  return probe.source != nullptr && looks_like_hdf5(*probe.source);
}

Result<FormatReport> verify_hdf5_file(Env& env, const Path& path,
                                      const Progress& progress) {
  return verify_hdf5(HOLDFAST_TRY(FileSource::open(env, path)),
                     path.filename().native(), progress);
}

// Writes a file of a format that can be written to a sink.
template <Result<void> (*kStream)(Sink&, const Contents&)>
Result<void> write_by(Env& env, const Path& path, const Contents& contents) {
  const auto sink = HOLDFAST_TRY(FileSink::create(env, path));
  HOLDFAST_TRY(kStream(*sink, contents));
  return sink->finish();
}

bool is_sharded_safetensors(const FileProbe& probe) {
  if (!probe.folder) return probe.path.native().ends_with(kShardIndexSuffix);
  if (is_dcp_folder(probe.names)) return false;
  const auto count = [&](std::string_view suffix) {
    return std::ranges::count_if(
        probe.names, [&](const std::string& name) { return name.ends_with(suffix); });
  };
  return count(kShardIndexSuffix) > 0 || count(kSafetensorsSuffix) == 1;
}

Result<void> write_shards(Env& env, const Path& path, const Contents& contents) {
  return write_sharded_safetensors(env, path, contents);
}

template <Result<Contents> (*kOpen)(std::shared_ptr<const Source>)>
Result<Contents> open_by(Env& env, const Path& path) {
  return kOpen(HOLDFAST_TRY(FileSource::open(env, path)));
}

template <Result<FormatReport> (*kVerify)(std::shared_ptr<const Source>,
                                          const Progress&)>
Result<FormatReport> verify_by(Env& env, const Path& path, const Progress& progress) {
  return kVerify(HOLDFAST_TRY(FileSource::open(env, path)), progress);
}

// An index is recognised by the mark at its end. If no format recognises a file that is
// called like an index, it is an index whose end is damaged.
bool is_tensor_bundle(const FileProbe& probe) {
  if (probe.folder) return is_tensor_bundle_folder(probe.names);
  return is_tensor_bundle_index(probe.bytes_at(-8, 8)) ||
         probe.path.native().ends_with(kTensorBundleIndexSuffix);
}

// All formats, in the order in which they are asked whether they recognise a file.
const std::vector<Format>& all() {  // NOLINT(readability-function-size): a table
  static const std::vector<Format> kFormats{
      {.name = "safetensors-folder",
       .what = "folder of safetensors files with an index, as of Hugging Face",
       .extensions = {},
       .folder = true,
       .keeps_empty = false,
       .recognises = is_sharded_safetensors,
       .open = open_sharded_safetensors,
       .write = write_shards,
       .plan_patch = plan_sharded_safetensors_patch},
      {.name = "safetensors",
       .what = "one safetensors file",
       .extensions = {".safetensors"},
       .recognises = is_safetensors,
       .open = open_by<open_safetensors>,
       .write = write_by<stream_safetensors>,
       .stream = stream_safetensors,
       .plan_patch = plan_safetensors_patch},
      {.name = "npz",
       .what = "archive of NumPy arrays (numpy.savez), as Chainer writes it",
       .extensions = {".npz"},
       .recognises = is_npz,
       .open = open_by<open_npz>,
       .write = write_by<write_npz>,
       .stream = write_npz,
       .plan_patch = plan_npz_patch,
       .verify = verify_by<verify_npz>},
      {.name = "npy",
       .what = "one NumPy array (numpy.save)",
       .extensions = {".npy"},
       .one_tensor = true,
       .keeps_objects = false,
       .keeps_aliases = false,
       .keeps_metadata = false,
       .keeps_empty = false,
       .keeps_dtype = is_numpy_dtype,
       .recognises = [](const FileProbe& g) { return !g.folder && is_npy(g.head); },
       .open = open_by<open_npy>,
       .write = write_by<write_npy>,
       .stream = write_npy,
       .plan_patch = plan_npy_patch},
      {.name = "torch",
       .what = "file of torch.save",
       .extensions = {".pt", ".pth", ".bin"},
       .keeps_metadata = false,
       .recognises = is_torch,
       .open = open_by<open_torch>,
       .write = write_by<write_torch>,
       .stream = write_torch,
       .plan_patch = plan_torch_patch,
       .verify = verify_by<verify_torch>},
      {.name = "torch-folder",
       .what = "folder of torch.save files, as of Hugging Face; not written",
       .extensions = {},
       .folder = true,
       .recognises = is_torch_model_folder,
       .open = open_torch_folder,
       .plan_patch = plan_torch_folder_patch,
       .verify = verify_torch_folder},
      {.name = "hdf5",
       .what = "HDF5 file, as of Keras and Chainer",
       .extensions = {".h5", ".hdf5"},
       .keeps_links = true,
       .recognises = is_hdf5,
       .open = open_by<open_hdf5>,
       .write = write_by<write_hdf5>,
       .stream = write_hdf5,
       .plan_patch = plan_patch_hdf5,
       .verify = verify_hdf5_file},
      {.name = "keras",
       .what = ".keras file, written only from contents that have its model",
       .extensions = {".keras"},
       .keeps_links = true,
       .recognises = is_keras,
       .only_again = true,
       .open = open_by<open_keras>,
       .write = write_by<write_keras>,
       .stream = write_keras,
       .plan_patch = plan_keras_patch,
       .verify = verify_by<verify_keras>},
      {.name = "keras-shards",
       .what = "weights of Keras in several files, read and patched, but not written",
       .extensions = {".weights.json"},
       .list_files = list_keras_shards,
       .recognises = is_keras_index,
       .open = open_keras_shards,
       .plan_patch = plan_keras_shards_patch,
       .verify = verify_keras_shards},
      {.name = "tensorflow",
       .what = "TensorFlow checkpoint",
       .extensions = {},
       .folder = true,
       .recognises = is_tensor_bundle,
       .open = open_tensor_bundle,
       .write = write_tensor_bundle,
       .plan_patch = plan_patch_tensor_bundle,
       .verify = verify_tensor_bundle},
      {.name = "dcp",
       .what = "folder of torch.distributed.checkpoint",
       .extensions = {},
       .folder = true,
       .recognises = [](const FileProbe& g) { return is_dcp_folder(g.names); },
       .open = open_dcp,
       .write = write_dcp,
       .plan_patch = plan_dcp_patch,
       .verify = verify_dcp},
  };
  return kFormats;
}

std::string names_of_formats(bool only_writable = false) {
  std::vector<std::string_view> names;
  for (const Format& format : formats()) {
    if (format.can_write() || !only_writable) names.push_back(format.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<FileProbe> probe_file(Env& env, const Path& path) {
  const bool folder = HOLDFAST_TRY(env.info(path)).folder;
  FileProbe probe{.path = path, .folder = folder};
  if (probe.folder) {
    probe.names = HOLDFAST_TRY(env.list(path));
    return probe;
  }
  probe.source = HOLDFAST_TRY(FileSource::open(env, path));
  const Source& file = *probe.source;
  probe.head = HOLDFAST_TRY(file.read_bytes(0, std::min(file.size(), kProbeBytes)));
  if (!probe.zip()) return probe;
  Result<std::vector<std::string>> records = list_zip(file);
  if (records.ok()) {
    probe.records = *std::move(records);
  } else if (records.error().code() != ErrorCode::kCorrupt &&
             records.error().code() != ErrorCode::kUnsupported) {
    return records.error();
  }
  return probe;
}

Path without_slash(const Path& path) {
  return path.has_filename() ? path : path.parent_path();
}

using Fill = std::function<Result<void>(const Path&)>;

// Writes to `attempt` and renames it to `path`. On failure removes what is there of it,
// and ignores a failure of the removal, because the first error says more.
Result<void> write_and_rename(Env& env, const Path& path, const Path& attempt,
                              const Fill& fill) {
  auto done = fill(attempt);
  if (done.ok()) done = env.rename_new(attempt, path);
  if (!done.ok()) (void)env.remove_all(attempt);
  return done;
}

// Writes to a file that has no name until it is complete. Returns nullopt if the format
// or the file system cannot do that.
std::optional<Result<void>> write_unnamed(Env& env, const Format& format,
                                          const Path& path, const Contents& contents) {
  if (format.stream == nullptr) return std::nullopt;
  const auto sink = FileSink::create_unnamed(env, folder_of(path));
  if (!sink.ok() && sink.error().code() == ErrorCode::kUnsupported) return std::nullopt;
  if (!sink.ok()) return sink.error();
  Result<void> done = format.stream(**sink, contents);
  if (!done.ok()) return done;
  done = (*sink)->finish_as(env, path);
  // Only now a file system without hard links shows that it cannot give a name.
  if (!done.ok() && done.error().code() == ErrorCode::kUnsupported) return std::nullopt;
  return done;
}

Result<void> check_new(Env& env, const Path& target) {
  if (env.info(target).ok()) {
    return conflict("{}: exists already; expected a new name", target.native());
  }
  const Path folder = folder_of(target);
  const Result<FileInfo> info = env.info(folder);
  if (info.ok()) return {};
  if (!is_missing(info.error())) return info.error();
  return not_found("{}: there is no folder {}; expected one that exists",
                   target.native(), folder.native());
}

Path hidden_name(Env& env, const Path& path) {
  return folder_of(path) /
         fmt::format(".{}.{:016x}.tmp", path.filename().native(), env.random64());
}

}  // namespace

Bytes FileProbe::bytes_at(int64_t offset, int64_t count) const {
  if (source == nullptr) return {};
  if (offset < 0) offset += source->size();
  if (offset < 0 || offset > source->size() - count) return {};
  Result<Bytes> bytes = source->read_bytes(offset, count);
  return bytes.ok() ? *std::move(bytes) : Bytes();
}

bool FileProbe::zip() const {
  const std::string_view text = text_of(head);
  // The first record, or the end of an archive that has none.
  return text.starts_with("PK\x03\x04") || text.starts_with("PK\x05\x06") ||
         text.starts_with("PK\x06\x06");
}

std::span<const Format> formats() { return all(); }

Result<const Format*> find_format(std::string_view name) {
  for (const Format& format : formats()) {
    if (format.name == name) return &format;
  }
  return unsupported("format \"{}\": is not known; expected one of {}", name,
                     names_of_formats());
}

Result<Path> find_named(Env& env, const Path& path) {
  const Result<FileInfo> info = env.info(path);
  if (info.ok()) return path;
  if (is_missing(info.error()) && path.has_filename()) {
    Path index = path;
    index += ".index";
    if (env.info(index).ok()) return index;
  }
  return info.error();
}

Result<const Format*> format_of(Env& env, const Path& path) {
  HOLDFAST_TRY(check_no_journal(env, path));
  const FileProbe probe = HOLDFAST_TRY(probe_file(env, path));
  for (const Format& format : formats()) {
    if (format.recognises(probe)) return &format;
  }
  const auto foreign = describe_foreign_folder(probe.names);
  if (foreign) return unsupported("{}: {}", path.native(), *foreign);
  return unsupported("{}: its format is not known; expected one of {}", path.native(),
                     names_of_formats());
}

Result<const Format*> format_for(const Path& path) {
  if (!path.has_filename()) return find_format("safetensors-folder");
  for (const Format& format : formats()) {
    for (const std::string_view extension : format.extensions) {
      if (format.write != nullptr && path.native().ends_with(extension)) return &format;
    }
  }
  return unsupported(
      "{}: the name does not tell the format; expected a name or option for one of {}",
      path.native(), names_of_formats(true));
}

Result<Contents> open_file(Env& env, const Path& path) {
  const Path named = HOLDFAST_TRY(find_named(env, path));
  const Format* format = HOLDFAST_TRY(format_of(env, named));
  return format->open(env, named);
}

Result<Patch> plan_patch(Env& env, const Path& path, std::span<const Flip> flips,
                         Checksums checksums) {
  const Path named = HOLDFAST_TRY(find_named(env, path));
  const Format* format = HOLDFAST_TRY(format_of(env, named));
  if (format->can_patch()) return format->plan_patch(env, named, flips, checksums);
  return unsupported("{}: the format {} can be read, but not patched", path.native(),
                     format->name);
}

Result<bool> repair_file(Env& env, const Path& path, FileLocks& locks) {
  return repair_patch(env, HOLDFAST_TRY(find_named(env, path)), locks);
}

Result<void> write_file(Env& env, const Path& path, const Contents& contents,
                        const NewFileOptions& options) {
  const Format* format = options.format;
  if (format == nullptr) format = HOLDFAST_TRY(format_for(path));
  if (format->write == nullptr) {
    return unsupported(
        "{}: the format {} can be read, but not written; expected another format",
        path.native(), format->name);
  }
  const Path target = without_slash(path);
  HOLDFAST_TRY(check_new(env, target));
  std::optional<Result<void>> done = write_unnamed(env, *format, target, contents);
  if (!done) {
    const Path& attempt =
        options.attempt.empty() ? hidden_name(env, target) : options.attempt;
    done = write_and_rename(env, target, attempt, [&](const Path& name) {
      return format->write(env, name, contents);
    });
  }
  HOLDFAST_TRY(*std::move(done));
  return env.sync_names(folder_of(target));
}

Result<void> write_new_folder(Env& env, const Path& path, const Path& attempt,
                              const std::function<Result<void>(const Path&)>& fill) {
  const Path target = without_slash(path);
  HOLDFAST_TRY(check_new(env, target));
  HOLDFAST_TRY(write_and_rename(env, target, attempt, fill));
  return env.sync_names(folder_of(target));
}

}  // namespace holdfast

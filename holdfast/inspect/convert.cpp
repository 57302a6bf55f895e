#include "holdfast/inspect/convert.h"

#include <algorithm>
#include <set>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/inspect/attempt_path.h"
#include "holdfast/inspect/diff.h"
#include "holdfast/inspect/files_of.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/location.h"
#include "holdfast/store/step_check.h"

namespace holdfast {
namespace {

// Fails if the format cannot store something that the values depend on.
Result<void> check_kept(const Contents& contents, const Format& format) {
  for (const Tensor& tensor : contents.collection.tensors()) {
    if (!format.keeps_dtype(tensor.dtype)) {
      return unsupported("{}: has the dtype {}, which {} does not support", tensor.name,
                         name_of(tensor.dtype), format.name);
    }
    if (!format.keeps_aliases && !tensor.aliases.empty()) {
      return unsupported("{}: has the alias {}, but {} does not support aliases",
                         tensor.name, tensor.aliases.front(), format.name);
    }
  }
  // Objects that only nest tensors say nothing that a format without objects loses.
  if (!format.keeps_objects && first_difference(contents.objects, Object())) {
    return unsupported("{} stores only tensors, but the source has objects",
                       format.name);
  }
  return {};
}

// Names soft links that are no name of a tensor, nor a part of one.
std::vector<std::string> links_without_tensors(const Contents& contents) {
  std::vector<std::string> words;
  if (contents.hdf5.soft_links.empty()) return words;
  std::set<std::string_view> names;
  for (const Tensor& tensor : contents.collection.tensors()) {
    names.insert(tensor.name);
    names.insert(tensor.aliases.begin(), tensor.aliases.end());
  }
  for (const auto& [path, target] : contents.hdf5.soft_links) {
    const std::string inside = path + "/";
    const auto next = names.lower_bound(inside);
    if (names.contains(path)) continue;
    if (next != names.end() && next->starts_with(inside)) continue;
    words.push_back(fmt::format("link {} to {}, which has no tensor", path, target));
  }
  return words;
}

// Names, in words, what the target does not keep and the values do not depend on.
std::vector<std::string> what_is_left_out(Env& env, const Found& from,
                                          const Contents& contents,
                                          const Format& format) {
  std::vector<std::string> words;
  for (const std::string& object : contents.simplified) {
    words.push_back("class of " + object);
  }
  std::ranges::copy(contents.left_out, std::back_inserter(words));
  if (format.one_tensor) {
    for (const Tensor& tensor : contents.collection.tensors()) {
      words.push_back("name " + tensor.name);
    }
  }
  std::ranges::copy(contents.hdf5.not_kept, std::back_inserter(words));
  if (!format.keeps_links) {
    std::ranges::copy(links_without_tensors(contents), std::back_inserter(words));
  }
  if (!format.keeps_metadata) {
    for (const auto& [key, value] : contents.metadata) {
      words.push_back("metadata " + key);
    }
  }
  const Result<Manifest> manifest =
      from.step() ? read_manifest(env, from.path) : Result<Manifest>(Manifest());
  if (!manifest.ok()) return words;
  for (const ManifestFile& file : manifest->files) {
    // The objects that are the same on all ranks are converted.
    if (rank_of_objects(file.name).has_value()) words.push_back(file.name);
  }
  return words;
}

// Locks what is read, so that nobody changes it in place meanwhile. Others may read it. A
// step needs no lock: its chunks have digests, and nobody changes them without a trace.
Result<void> lock_to_read(Env& env, const Found& from, FileLocks& locks) {
  return from.step() ? Result<void>()
                     : lock_files_of(env, from, LockKind::kShared, locks);
}

Result<void> write_found(Env& env, const ConvertOptions& options, const Found& from,
                         const Format& format, Written& done) {
  FileLocks locks;
  HOLDFAST_TRY(lock_to_read(env, from, locks));
  Contents contents = HOLDFAST_TRY(open_found(env, from));
  HOLDFAST_TRY(check_kept(contents, format).within(done.to.native()));
  done.notes = what_is_left_out(env, from, contents, format);
  done.tensors = std::ssize(contents.collection.tensors());
  done.bytes = contents.collection.bytes();
  meter_sources(contents, options.reading, done.bytes);
  return write_file(env, done.to, contents,
                    {.format = &format, .attempt = choose_attempt(env, done.to)});
}

}  // namespace

Result<Written> convert(Env& env, const Path& from, const Path& to,
                        const ConvertOptions& options) {
  HOLDFAST_TRY(check_place(to));
  const Format* format = HOLDFAST_TRY(options.format.empty() ? format_for(to)
                                                             : find_format(options.format));
  Written done{.to = to, .format = std::string(format->name)};
  done.from = HOLDFAST_TRY(use_any(env, from, [&](const Found& found) {
    return write_found(env, options, found, *format, done);
  }));
  return done;
}

}  // namespace holdfast

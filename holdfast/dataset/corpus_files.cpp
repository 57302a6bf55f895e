#include "holdfast/dataset/corpus_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "holdfast/base/xxh3.h"

namespace holdfast {
namespace {

struct KindName {
  std::string_view name;
  CorpusKind kind;
};
constexpr KindName kKinds[] = {{"text", CorpusKind::kText},
                               {"tokens", CorpusKind::kTokens},
                               {"megatron", CorpusKind::kMegatron},
                               {"tar", CorpusKind::kTar},
                               {"tfrecord", CorpusKind::kRecords}};

struct Ending {
  std::string_view text;
  CorpusKind kind;
};
constexpr Ending kEndings[] = {{".jsonl", CorpusKind::kText},
                               {".ndjson", CorpusKind::kText},
                               {".json", CorpusKind::kText},
                               {".txt", CorpusKind::kText},
                               {".csv", CorpusKind::kText},
                               {".tsv", CorpusKind::kText},
                               {".tar", CorpusKind::kTar},
                               {".tfrecord", CorpusKind::kRecords},
                               {".tfrecords", CorpusKind::kRecords}};

constexpr std::string_view kIndexEnding = ".holdfast-index";

bool is_pattern(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

bool is_file(Env& env, const Path& path) {
  const auto info = env.info(path);
  return info.ok() && !info->folder;
}

// The names in the folders that match one part of a pattern. Indexes are left out, also those
// that are being made, since "data/*" means the data. A folder that cannot be listed is left out unless it is in an
// object store, where it means that the store does not answer.
Result<std::vector<Path>> names_that_match(Env& env, const std::vector<Path>& folders,
                                           const std::string& part) {
  std::vector<Path> found;
  for (const Path& folder : folders) {
    const auto names = env.list(folder.empty() ? "." : folder);
    if (!names.ok() && is_object(folder) && !is_missing(names.error())) return names.error();
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const bool fits = ::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0;
      if (fits && name.find(kIndexEnding) == name.npos) found.push_back(folder / name);
    }
  }
  return found;
}

Result<std::vector<Path>> expand(Env& env, const Path& pattern) {
  std::vector<Path> found{Path()};
  for (const Path& part : pattern) {
    if (part == "**") {
      return invalid("{}: \"**\" stands for no folders; expected one * for each level of them",
                     pattern.native());
    }
    if (is_pattern(part.native())) {
      found = HOLDFAST_TRY(names_that_match(env, found, part.native()));
    } else {
      // Path merges the slashes of "s3://".
      const bool is_scheme = found.front().empty() && is_object(pattern);
      for (Path& path : found) path = is_scheme ? Path(part.native() + "//") : path / part;
    }
  }
  std::erase_if(found, [&](const Path& path) { return !is_file(env, path); });
  std::ranges::sort(found, {}, [](const Path& path) { return path.native(); });
  return found;
}

// The file of a name without a pattern in it.
Result<Path> find_named(Env& env, const std::string& name) {
  const Path path(name);
  if (path.extension() == ".idx") return Path(path).replace_extension(".bin");
  const auto info = env.info(path);
  if (info.ok() && !info->folder) return path;
  Path bin = name + ".bin";
  if (is_file(env, bin) && is_file(env, megatron_table_of(bin))) return bin;
  if (!info.ok()) return info.error();
  return invalid("{}: is a folder; expected files, as in {}/*.jsonl", name, name);
}

Result<CorpusKind> guess_kind(Env& env, const Path& file, bool has_dtype) {
  std::string name = file.filename().native();
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  for (const Ending& ending : kEndings) {
    if (name.ends_with(ending.text)) return ending.kind;
  }
  // TensorFlow's shards: train.tfrecord-00003-of-00010.
  if (name.find(".tfrecord-") != name.npos) return CorpusKind::kRecords;
  if (has_dtype) return CorpusKind::kTokens;
  if (name.ends_with(".bin") && is_file(env, megatron_table_of(file))) {
    return CorpusKind::kMegatron;
  }
  if (name.ends_with(".bin")) {
    return unsupported(
        "{}: has no {} beside it; expected that, or a dtype such as u16 of its tokens",
        file.native(), megatron_table_of(file).filename().native());
  }
  for (const std::string_view packed : {".gz", ".zst", ".xz", ".bz2", ".zip"}) {
    if (!name.ends_with(packed)) continue;
    return unsupported(
        "{}: is compressed, so no sample can be read by itself; expected the unpacked "
        "file",
        file.native());
  }
  return unsupported(
      "{}: the name does not tell what is in it; expected kind=\"text\", \"tokens\", "
      "\"megatron\", \"tar\" or \"tfrecord\"",
      file.native());
}

}  // namespace

std::string_view name_of(CorpusKind kind) {
  return std::ranges::find(kKinds, kind, &KindName::kind)->name;
}

Result<CorpusKind> parse_corpus_kind(std::string_view word) {
  const auto found = std::ranges::find(kKinds, word, &KindName::name);
  if (found != std::end(kKinds)) return found->kind;
  std::string names;
  for (const KindName& one : kKinds) names += fmt::format(" {}", one.name);
  return invalid("kind: \"{}\"; expected one of{}", word, names);
}

bool is_object(const Path& path) { return path.native().find("://") != std::string::npos; }

Path megatron_table_of(const Path& bin) { return Path(bin).replace_extension(".idx"); }

Result<std::vector<Path>> find_corpus_files(Env& env,
                                            const std::vector<std::string>& patterns) {
  std::vector<Path> files;
  for (const std::string& pattern : patterns) {
    std::vector<Path> found;
    if (is_pattern(pattern) && (is_object(pattern) || !is_file(env, pattern))) {
      found = HOLDFAST_TRY(expand(env, pattern));
    } else {
      found.push_back(HOLDFAST_TRY(find_named(env, pattern)));
    }
    if (found.empty()) {
      return not_found("{}: no file has such a name; expected at least one", pattern);
    }
    files.insert(files.end(), found.begin(), found.end());
  }
  if (files.empty()) return invalid("corpus: no files; expected at least one");
  return files;
}

Result<CorpusKind> guess_corpus_kind(Env& env, const std::vector<Path>& files,
                                     bool has_dtype) {
  const CorpusKind kind = HOLDFAST_TRY(guess_kind(env, files.front(), has_dtype));
  for (const Path& file : files) {
    const CorpusKind other = HOLDFAST_TRY(guess_kind(env, file, has_dtype));
    if (other == kind) continue;
    return invalid("{}: is a file of {}, and {} is one of {}; expected files of one kind",
                   file.native(), name_of(other), files.front().native(), name_of(kind));
  }
  return kind;
}

Path index_path_of(const Path& file, const Path& folder) {
  if (folder.empty()) return file.native() + std::string(kIndexEnding);
  // Files of several folders may have the same name.
  const Path whole = is_object(file) ? file : std::filesystem::absolute(file).lexically_normal();
  const std::string digest = xxh3_128(bytes_of(whole.native())).hex().substr(0, 8);
  return folder / fmt::format("{}-{}{}", file.filename().native(), digest, kIndexEnding);
}

}  // namespace holdfast

// `holdfast index`: writes where the samples of data files lie, and the digests of the
// files.
#include <fmt/ostream.h>

#include <algorithm>
#include <memory>

#include "holdfast/cli/corpus_options.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

constexpr const char* kIndexExample = R"(
Examples:
  holdfast index c4/*.jsonl                  writes c4/a.jsonl.holdfast-index and others
  holdfast index 'c4/*.jsonl' --to indexes   writes them into the folder indexes
  holdfast index books_text_document         Megatron's books_text_document.bin and .idx
  holdfast index c4/*.jsonl --check          are the files as they were?

The samples of a text are its lines, those of Megatron files their documents, those of a
tar archive the members of one key (WebDataset), those of TFRecord the records. A file
of tokens has no table, only a digest. The files stay as they are. holdfast.data.Files makes
indexes that are missing itself; this verb makes them beforehand, and makes those of files
that have changed anew. A file is read once, as fast as the disk gives it.)";

struct IndexArguments {
  CorpusArguments corpus;
  bool check = false;
};

// What became of the index of one file.
struct Indexed {
  Path file;
  FileIndex index;
  bool made = false;
};

// Opens the index of a file, or makes it if there is none that fits the file.
Result<Indexed> index_file(const Context& context, const IndexArguments& arguments,
                           const Path& file, CorpusKind kind) {
  const Path path = index_path_of(file, arguments.corpus.index_folder);
  ProgressBar bar(context, (arguments.check ? "check " : "index ") + printable(file.native()));
  auto index = FileIndex::open(context.env, file, path, kind);
  if (arguments.check) {
    if (!index.ok() && index.error().code() == ErrorCode::kConflict) {
      return index.error().as(ErrorCode::kCorrupt);
    }
    FileIndex opened = HOLDFAST_TRY(std::move(index));
    HOLDFAST_TRY(check_index(context.env, file, opened, bar.callback()));
    return Indexed{file, std::move(opened)};
  }
  if (index.ok()) return Indexed{file, std::move(index).value()};
  FileIndex made =
      HOLDFAST_TRY(make_index(context.env, file, path, kind, bar.callback()));
  return Indexed{file, std::move(made), true};
}

std::string digest_of(const IndexHeader& header) {
  return "xxh3:" + header.file.digest.hex();
}

void put_indexed(FieldWriter& field, const Indexed& one) {
  const IndexHeader& header = one.index.header();
  field("path", one.file.native());
  field("kind", name_of(header.kind));
  field("bytes", header.file.bytes);
  field("digest", digest_of(header));
  field("index", one.index.path().native());
  field("index_bytes", one.index.bytes());
  field("made", one.made);
  if (header.words > 0) field("samples", one.index.samples());
}

std::string line_of(const IndexArguments& arguments, const Indexed& one) {
  const IndexHeader& header = one.index.header();
  const std::string samples =
      header.words > 0
          ? human_count(one.index.samples()) + " samples in "
          : std::string();
  const char* const state = arguments.check ? "as indexed in"
                            : one.made      ? "index of"
                                            : "has an index of";
  return fmt::format("{}: {}{}, {}; {} {} in {}\n", printable(one.file.native()), samples,
                     human_bytes(header.file.bytes), digest_of(header), state,
                     human_bytes(one.index.bytes()),
                     printable(one.index.path().native()));
}

Result<ExitCode> index_files(const Context& context, const IndexArguments& arguments) {
  const CorpusOptions options = HOLDFAST_TRY(arguments.corpus.parsed());
  const std::vector<Path> files =
      HOLDFAST_TRY(find_corpus_files(context.env, arguments.corpus.files));
  const auto kind = options.kind ? Result<CorpusKind>(*options.kind)
                                 : guess_corpus_kind(context.env, files,
                                                     options.dtype.has_value());
  if (!kind.ok()) return kind.error();
  std::vector<Indexed> all;
  std::vector<FailedPath> failed;
  for (const Path& file : files) {
    auto one = index_file(context, arguments, file, *kind);
    if (!one.ok()) {
      failed.push_back({file.native(), one.error()});
    } else if (context.json) {
      all.push_back(*std::move(one));
    } else {
      fmt::print(context.out, "{}", line_of(arguments, *one));
    }
  }
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) {
      field.list("files", all, put_indexed);
      field.list("errors", failed);
    });
  }
  return tell_failed(context, failed);
}

}  // namespace

Verb index_verb() {
  auto arguments = std::make_shared<IndexArguments>();  // shared with `run` below
  IndexArguments& a = *arguments;
  std::vector<Option> options = a.corpus.options("Files of one kind, or patterns of them");
  options.push_back({"--check", "Read the files and compare them with their indexes", &a.check});
  return {.name = "index",
          .summary = "Find the samples in data files, for loaders and mounts",
          .footer = kIndexExample,
          .options = std::move(options),
          .run = [arguments](const Context& c) { return index_files(c, *arguments); }};
}

}  // namespace holdfast

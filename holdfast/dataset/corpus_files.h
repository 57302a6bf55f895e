// Which files make up a corpus: patterns, the kinds of files, and where their indexes lie.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

// What a file is, and so what one sample of it is.
enum class CorpusKind {
  kText,      // a line, without its end; lines with nothing but blanks are no samples
  kTokens,    // a window of numbers of a file that has nothing but numbers
  kMegatron,  // a document, or a window, of the .bin file of a .bin/.idx pair
  kTar,       // the members of an archive that follow each other under one key
  kRecords,   // a record of a TFRecord file
};

// "text", "tokens", "megatron", "tar", "tfrecord".
std::string_view name_of(CorpusKind kind);
// Fails with kInvalid, with all names, for another word.
Result<CorpusKind> parse_corpus_kind(std::string_view word);

// True for "s3://bucket/key", which is no path of this machine.
bool is_object(const Path& path);

// The file whose numbers say where the documents of x.bin are: x.idx.
Path megatron_table_of(const Path& bin);

// The files that the patterns name, in the order of the patterns; those of one pattern
// are sorted bytewise. '*', '?' and [a-z] are understood in every part of a path, and a
// path without them is taken as it is. "books" means books.bin if only that exists and
// books.idx is there. "s3://bucket/c4/*.jsonl" means objects, if the Env shows them as
// files (store/object_store_env.h). Fails with kNotFound for a pattern without files.
Result<std::vector<Path>> find_corpus_files(Env& env,
                                            const std::vector<std::string>& patterns);

// The kind of the files by their names. Fails with kInvalid if they have several kinds,
// and with kUnsupported if the name of one does not tell. `has_dtype` says that the
// caller has named a dtype, which makes a .bin file one of tokens.
Result<CorpusKind> guess_corpus_kind(Env& env, const std::vector<Path>& files,
                                     bool has_dtype);

// Where the index of a file lies: beside it, or in `folder` if that is not empty.
Path index_path_of(const Path& file, const Path& folder);

}  // namespace holdfast

// The index of one file of a corpus: its digest, and where its samples lie.
//
// It is a .npy file of 64-bit integers: a header of 18 words, then the table
// (sample_table.h). NumPy and any other tool can read it. It is mapped into memory, and
// only the words that are needed are read.
//
//   0 mark, 1 kind, 2 dtype of a Megatron file, 3 words of the table
//   4 size of the file, 5 time of its last change in ns, 6 and 7 its digest (XXH3-128)
//   8 to 11 the same of the .idx file of a Megatron pair, else 0
//   12 and 13 the digest of the table, 14 to 16 zero
//   17 the low half of the digest of words 0 to 16
#pragma once

#include <array>
#include <optional>

#include "holdfast/base/xxh3.h"
#include "holdfast/contents/contents.h"
#include "holdfast/dataset/corpus_files.h"
#include "holdfast/env/mapped_file.h"

namespace holdfast {

// A file as it was when it was indexed.
struct IndexedFile {
  int64_t bytes = 0;
  int64_t modified = 0;  // nanoseconds since 1970
  Digest128 digest{};
};

struct IndexHeader {
  CorpusKind kind = CorpusKind::kText;
  int64_t dtype = 0;  // of a Megatron file (megatron_dtype)
  IndexedFile file{};
  IndexedFile table_file{};  // the .idx file of a Megatron pair
  int64_t words = 0;
  Digest128 words_digest{};
};

// Fails with kCorrupt if the source is no index, or has another size than it says.
Result<IndexHeader> read_index_header(const Source& source);

// An index that was opened. Safe from several threads.
class FileIndex {
 public:
  // Opens the index at `path` of the file. Fails with kNotFound if there is none, with
  // kConflict if the file has another size, time or kind now, and with kCorrupt if the
  // index is damaged or cut short. Reads the header only.
  static Result<FileIndex> open(Env& env, const Path& file, const Path& path,
                                CorpusKind kind);

  const IndexHeader& header() const { return header_; }
  // How many samples the table has; 0 if there is no table.
  int64_t samples() const;
  // 0 <= word < header().words.
  int64_t word(int64_t word) const {
    HOLDFAST_CHECK(word >= 0 && word < header_.words, "word {} of {}", word, header_.words);
    const auto at = static_cast<size_t>(word) * sizeof(int64_t);
    return static_cast<int64_t>(load_little_endian<uint64_t>(table().subspan(at)));
  }
  // Has the processor fetch a word that will be asked for soon: a table is larger than its
  // caches. Any number may be given.
  void prefetch(int64_t word) const {
    __builtin_prefetch(table().data() + static_cast<size_t>(word) * sizeof(int64_t));
  }
  // The size of the index's file.
  int64_t bytes() const { return std::ssize(map_.memory()); }
  const Path& path() const { return path_; }
  // Compares the table with its digest. Reads all of it.
  Result<void> check_table() const;

 private:
  FileIndex(Path path, MappedFile map, IndexHeader header)
      : path_(std::move(path)), map_(std::move(map)), header_(header) {}
  ByteView table() const {
    return map_.memory().last(static_cast<size_t>(header_.words) * sizeof(int64_t));
  }

  Path path_;
  MappedFile map_;
  IndexHeader header_;
};

// Reads the whole file and writes its index, in the place of an older one. Several
// processes may do so at a time: one of them reads, and the others wait for it. Fails with
// kUnsupported if the index would lie in an object store.
Result<FileIndex> make_index(Env& env, const Path& file, const Path& path,
                             CorpusKind kind, const Progress& progress);

// Reads the whole file again and compares it with its index. Fails with kCorrupt if they
// differ.
Result<void> check_index(Env& env, const Path& file, const FileIndex& index,
                         const Progress& progress);

}  // namespace holdfast

// A corpus: the samples of files as their owners have them, by number.
//
//   a.jsonl, b.jsonl    a sample is a line
//   tokens.bin          a sample is a window of `context` numbers of a dtype
//   x.bin with x.idx    a document of Megatron-LM, or a window of its tokens
//   shard.tar           the members of a key, as WebDataset has them (tar_members.h)
//   x.tfrecord          a record
//
// The samples of the first file come first, in its own order. The order in which a
// training reads them is another matter (state/sample_sequence.h).
//
// Opening reads the header of each file's index, and makes the indexes that are missing
// (index_file.h). It refuses a file that has changed since it was indexed. After that a
// sample costs one read at its place. Safe from several threads, and in a process that
// was forked.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holdfast/dataset/index_file.h"
#include "holdfast/dataset/sample_table.h"
#include "holdfast/env/env.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

struct CorpusOptions {
  // By the names of the files if it is not given.
  std::optional<CorpusKind> kind{};
  // Numbers in a window. 0: the documents of Megatron files.
  int64_t context = 0;
  // The type of the numbers; Megatron files say it themselves.
  std::optional<Dtype> dtype{};
  // Where the indexes lie; empty: beside the files.
  Path index_folder{};
  // How many threads read at a time.
  int threads = 8;
};

// Reads "u16", "U16" or "uint16". Fails with kInvalid unless it is a type of integers.
Result<Dtype> parse_token_dtype(std::string_view word);

// Bytes of one file of a corpus.
struct FileRange {
  size_t file = 0;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const FileRange&, const FileRange&) = default;
};

// Bytes to be read, and the memory for them, which has their size.
struct SampleRead {
  FileRange from{};
  ByteSpan into{};
};

// Called before a file is indexed: which file, and the files that are indexed already.
using IndexProgress =
    std::function<void(const Path& file, int64_t done, int64_t total)>;

class FileSource;
class RangeReader;

class Corpus {
 public:
  // Fails with kInvalid for options that do not fit the files, and as index_file.h and
  // corpus_files.h say. The Env must outlive the corpus.
  static Result<std::unique_ptr<Corpus>> open(Env& env,
                                              const std::vector<std::string>& patterns,
                                              CorpusOptions options,
                                              const IndexProgress& progress = {});
  ~Corpus();

  CorpusKind kind() const { return options_.kind.value(); }
  // The type of the numbers in a sample; nullopt if a sample is text.
  std::optional<Dtype> dtype() const { return options_.dtype; }
  int64_t samples() const { return firsts_.back(); }
  const std::vector<Path>& files() const { return files_; }
  int64_t samples_of(size_t file) const { return firsts_[file + 1] - firsts_[file]; }
  const FileIndex& index_of(size_t file) const { return indexes_[file]; }
  // 32 digits: the kind, the options that say what a sample is, and the size and digest
  // of each file. It does not depend on the names of the files.
  const std::string& fingerprint() const { return fingerprint_; }

  // Where a sample lies. Fails with kInvalid if there is no such sample, and with kCorrupt
  // if the index is damaged there.
  Result<FileRange> range_of(int64_t sample) const;
  // The same of several samples, which takes less time than one after the other.
  Result<std::vector<FileRange>> ranges_of(std::span<const int64_t> samples) const;
  // With what belongs to each sample in its file: the CRCs of a record.
  Result<std::vector<FileRange>> stored_ranges_of(std::span<const int64_t> samples) const;
  // What follows a sample where samples stand one after the other: the end of the line.
  std::string_view separator() const;
  // What follows the last sample: the end of an archive.
  std::string_view trailer() const;

  // Fills the memory of all reads. Bytes that lie near each other are read at once, and
  // several threads read. A file that was changed since it was indexed is kCorrupt.
  Result<void> read(std::span<SampleRead> reads) const;
  // One sample.
  Result<Bytes> read(int64_t sample) const;

  // A file of the corpus for those who read its bytes themselves. They call check_unchanged()
  // after that. Both fail with kCorrupt if it was changed since it was indexed.
  Result<std::shared_ptr<const FileSource>> open_file(size_t file) const;
  Result<void> check_unchanged(size_t file, const FileSource& source) const;

 private:
  Corpus(Env& env, std::vector<Path> files, CorpusOptions options);
  Result<void> open_indexes(const IndexProgress& progress);
  Result<void> check_options();
  Result<void> count_samples();
  size_t file_of(int64_t sample) const;
  SampleRange range_in(size_t file, int64_t sample) const;
  int64_t window_bytes() const;
  std::string make_fingerprint() const;

  Env& env_;
  const std::vector<Path> files_;
  CorpusOptions options_;
  std::vector<FileIndex> indexes_;
  std::vector<int64_t> firsts_{0};  // the number of the first sample of each file
  std::string fingerprint_;
  const std::unique_ptr<RangeReader> reader_;
};

}  // namespace holdfast

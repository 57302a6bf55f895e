// The files of a mount: each worker's share of a corpus, in the order in which a training
// reads it. A path says all that is needed, so nothing is stored:
//
//   current-of-3 -> from-000000118400-of-3   the cursor of a run, looked up at each read
//   from-000000118400-of-3/worker-1          worker 1 of 3, from that position on
//     list.txt                               the parts, one a line, and where to go on
//     part-00000.jsonl                       the worker's share of some batches
//
// A part has the samples of its batches one after the other, whole and as their file has
// them; a line of text always ends with a line feed. The parts of all workers together
// are the rest of the epoch, every sample once. Workers count from 0.
//
// Nothing is computed for a part before its size or its bytes are asked for.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/dataset/corpus.h"
#include "holdfast/state/sample_sequence.h"

namespace holdfast {

enum class MountEntryKind { kFolder, kLink, kFile };

struct MountEntry {
  std::string name{};
  MountEntryKind kind = MountEntryKind::kFolder;
};

// A file of the mount that was opened. Safe from several threads.
class MountedFile {
 public:
  virtual ~MountedFile() = default;
  virtual int64_t size() const = 0;
  // Returns the number of bytes, which is smaller only at the end.
  virtual Result<size_t> read(int64_t offset, ByteSpan into) const = 0;
  // True if neighbouring bytes come from places that lie far from each other.
  virtual bool is_scattered() const { return false; }
  // Programs like to map numbers into memory, which needs a copy that the system keeps.
  virtual bool is_mapped() const { return true; }
  // Where the bytes lie, if that is one place of a file of the corpus.
  virtual std::optional<FileRange> place_of(int64_t, size_t) const { return std::nullopt; }
};

// Safe from several threads.
class MountTree {
 public:
  using Cursor = std::function<Result<int64_t>()>;

  // Fails with kInvalid as SampleSequence::create does. `options.samples` is set here.
  // `current` tells the cursor of a run; without it there is no current-of-N. The corpus
  // must outlive the tree and its files.
  static Result<std::unique_ptr<MountTree>> create(const Corpus& corpus,
                                                   SampleOptions options, Cursor current);

  // What a path, as "/from-0-of-2/worker-1", is. Fails with kNotFound if there is no such
  // file, or the batches have fewer samples than there are workers.
  Result<MountEntryKind> find(const std::string& path) const;
  // The names in a folder. The top folder shows only where a training may begin now; any
  // other from-C-of-N can be opened.
  Result<std::vector<MountEntry>> list(const std::string& path) const;
  // Where current-of-N leads.
  Result<std::string> target_of(const std::string& path) const;
  // The newest parts stay in memory, because tools ask for the size before they open.
  Result<std::shared_ptr<const MountedFile>> open(const std::string& path) const;
  const Corpus& corpus() const { return corpus_; }

 private:
  struct Place;
  MountTree(const Corpus& corpus, SampleSequence sequence, Cursor current)
      : corpus_(corpus), sequence_(std::move(sequence)), current_(std::move(current)) {}

  std::optional<Place> parse(const std::string& path) const;
  Result<Place> located(const std::string& path) const;
  // The positions from the cursor of the place to the end of the epoch.
  Positions rest_of(const Place& place) const;
  int64_t parts_of(const Place& place) const;
  Positions positions_of(const Place& place, int64_t part) const;
  // How many of the positions, which begin with a batch, belong to the place's worker.
  int64_t share_in(const Place& place, Positions positions) const;
  std::vector<int64_t> samples_of(const Place& place, Positions positions) const;
  std::string part_name(int64_t part) const;
  std::string list_text(const Place& place) const;
  Result<std::shared_ptr<const MountedFile>> make(const Place& place) const;

  const Corpus& corpus_;
  const SampleSequence sequence_;
  const Cursor current_;
  mutable Mutex mutex_;
  mutable std::list<std::pair<std::string, std::shared_ptr<const MountedFile>>> newest_
      HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast

// A file of a mount that a program has open: how its bytes get to the program.
#pragma once

#include "holdfast/base/mutex.h"
#include "holdfast/dataset/mount_tree.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// Bytes of a file that the system passes on to a reader without a copy in this process.
class Pipe {
 public:
  Pipe() = default;
  ~Pipe();
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  // Puts so many bytes of a file into the pipe. Returns false if the system does not do that,
  // or the file ends before.
  bool fill(int descriptor, int64_t offset, size_t count);
  // Where they come out.
  int out() const { return out_; }

  // How many bytes a pipe can hold: 1 MiB, or 512 KiB without the right to a longer pipe.
  static size_t most();

 private:
  // A pipe for that many bytes that do not begin with a page needs one page more, and the
  // length of a pipe is a power of 2.
  static bool can_hold(int end, size_t most);
  bool is_empty() const;
  bool open();
  bool renew();
  void close();

  int in_ = -1, out_ = -1;
};

// Safe from several threads.
class OpenedFile {
 public:
  // The tree must outlive it.
  OpenedFile(const MountTree& tree, std::shared_ptr<const MountedFile> file)
      : corpus_(tree.corpus()), file_(std::move(file)) {}

  int64_t size() const { return file_->size(); }
  // True if the system may keep what is read. If not, then it asks for just those bytes that
  // a program reads, and gives them to it at once.
  bool is_kept() const { return file_->is_mapped(); }

  // Returns how many of `count` bytes there are. Fails with kCorrupt if the file that the last
  // fill() took bytes from has been changed since.
  Result<size_t> count_at(int64_t offset, size_t count);
  // Puts the bytes into the pipe. Returns false if they must be read instead.
  //
  // The system copies them when the program gets them, which may be after a change that
  // nobody has seen here. So the next call of count_at() looks, and a program reads until
  // there is nothing more: it is told, if late. Bytes that are kept would stay wrong, so this
  // is for others only.
  bool fill(Pipe& pipe, int64_t offset, size_t count);
  // Reads the bytes.
  Result<void> read(int64_t offset, ByteSpan into);

 private:
  static constexpr int64_t kBlock = 1 << 20;
  // To pass on less takes longer than to copy it.
  static constexpr size_t kLeastFill = 32 << 10;

  Result<void> open_source(size_t number) HOLDFAST_REQUIRES(mutex_);
  bool read_block(int64_t begin) HOLDFAST_REQUIRES(mutex_);

  const Corpus& corpus_;
  const std::shared_ptr<const MountedFile> file_;
  Mutex mutex_;
  // The file that fill() has taken bytes from.
  std::shared_ptr<const FileSource> source_ HOLDFAST_GUARDED_BY(mutex_);
  size_t source_number_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // The begin of the block that was read last. The first read takes just what was asked for.
  int64_t newest_ HOLDFAST_GUARDED_BY(mutex_) = -2 * kBlock;
  int64_t block_at_ HOLDFAST_GUARDED_BY(mutex_) = -1;
  Bytes block_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast

// Source and Sink: the bytes that a file format reads and writes. The code of a format
// reads from a Source and writes to a Sink; it knows nothing of files, rings or object
// stores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "holdfast/base/bytes.h"
#include "holdfast/base/crc32c.h"
#include "holdfast/env/env.h"
#include "holdfast/env/file.h"

namespace holdfast {

// Bytes that can be read by range, from several threads at once. The size is fixed when
// the source is opened.
class Source {
 public:
  virtual ~Source() = default;

  // The name for messages: a path, or something else that tells a person where to look.
  virtual const std::string& name() const = 0;
  virtual int64_t size() const = 0;
  // Fills `into`. A range outside [0, size) is kCorrupt, because only a damaged file
  // sends its reader there. A file that has become shorter since it was opened is
  // kCorrupt too.
  Result<void> read(int64_t offset, ByteSpan into) const;
  // Reads into new memory, which is allocated only after the range was checked.
  Result<Bytes> read_bytes(int64_t offset, int64_t count) const;

 protected:
  // Fills `into`. The caller has checked that the range is inside [0, size).
  virtual Result<void> read_inside(int64_t offset, ByteSpan into) const = 0;

 private:
  Result<void> check_range(int64_t offset, int64_t count) const;
};

// The digest of the bytes [offset, offset + bytes), which are read in parts. Calls `count`
// with the number of bytes of each part that was read.
Result<Crc32c> crc32c_of(const Source& source, int64_t offset, int64_t bytes,
                         const std::function<void(int64_t)>& count = {});

// Receives bytes in order, from one thread at a time. After a failure the contents are
// undefined and nothing more may be appended.
class Sink {
 public:
  virtual ~Sink() = default;

  virtual Result<void> append(ByteView bytes) = 0;
  // The number of bytes so far, which is the offset of the next byte.
  virtual int64_t size() const = 0;
};

// A source of bytes in memory, which it owns.
class MemorySource : public Source {
 public:
  MemorySource(std::string name, Bytes bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}

  const std::string& name() const override { return name_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  std::string name_;
  Bytes bytes_;
};

class FileSource : public Source {
 public:
  static Result<std::unique_ptr<FileSource>> open(Env& env, const Path& path);

  const std::string& name() const override { return file_->path().native(); }
  int64_t size() const override { return size_; }
  // As file.h says.
  Result<WallTime> modified() const { return file_->modified(); }
  int descriptor() const { return file_->descriptor(); }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  FileSource(std::unique_ptr<File> file, int64_t size)
      : file_(std::move(file)), size_(size) {}

  const std::unique_ptr<File> file_;
  const int64_t size_;
};

// Writes a new file.
class FileSink : public Sink {
 public:
  // kConflict if the file exists.
  static Result<std::unique_ptr<FileSink>> create(Env& env, const Path& path);

  // Creates a file without a name (Env::create_unnamed). finish_as() names it.
  static Result<std::unique_ptr<FileSink>> create_unnamed(Env& env, const Path& folder);

  Result<void> append(ByteView bytes) override;
  int64_t size() const override { return size_; }
  // Makes the contents durable and closes the file; no call may follow. The name is
  // durable after Env::sync_folder. If finish() is never called, the file stays, and
  // its contents may be lost.
  Result<void> finish();
  // The same for a file without a name, which then gets this path. kConflict if the
  // path exists.
  Result<void> finish_as(Env& env, const Path& path);

 private:
  explicit FileSink(std::unique_ptr<File> file) : file_(std::move(file)) {}

  const std::unique_ptr<File> file_;
  int64_t size_ = 0;
};

}  // namespace holdfast

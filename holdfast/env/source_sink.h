// Where a format's bytes come from and where they go. A format reads from a Source and
// writes to a Sink and knows nothing of files, rings or object stores.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "holdfast/base/bytes.h"
#include "holdfast/env/env.h"

namespace holdfast {

// Bytes that can be read by range, from several threads at once. Its size is fixed when
// it is opened.
class Source {
 public:
  virtual ~Source() = default;

  // For messages: a path, or what else tells a person where to look.
  virtual const std::string& name() const = 0;
  virtual int64_t size() const = 0;
  // Fills `into`. A range outside [0, size) is kCorrupt, because it is a damaged file
  // that sends a reader there; so is a file that has become shorter since.
  Result<void> read(int64_t offset, ByteSpan into) const;
  // The same into memory of its own, which is not allocated before the range was
  // checked.
  Result<Bytes> read_bytes(int64_t offset, int64_t count) const;

 protected:
  // The range is inside.
  virtual Result<void> read_inside(int64_t offset, ByteSpan into) const = 0;

 private:
  Result<void> check_range(int64_t offset, int64_t count) const;
};

// Takes bytes in order. One thread at a time. After a failure the contents are
// undefined and nothing more may be appended.
class Sink {
 public:
  virtual ~Sink() = default;

  virtual Result<void> append(ByteView bytes) = 0;
  // Bytes taken so far: the offset of the next one.
  virtual int64_t size() const = 0;
};

// Reads memory of its own.
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

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  FileSource(std::unique_ptr<File> file, int64_t size)
      : file_(std::move(file)), size_(size) {}

  const std::unique_ptr<File> file_;
  const int64_t size_;
};

class MemorySink : public Sink {
 public:
  Result<void> append(ByteView bytes) override;
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }

  const Bytes& bytes() const { return bytes_; }
  Bytes take() && { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// Writes a new file.
class FileSink : public Sink {
 public:
  // kConflict if the file exists.
  static Result<std::unique_ptr<FileSink>> create(Env& env, const Path& path);

  // A file without a name (Env::create_unnamed), which finish_as() gives it.
  static Result<std::unique_ptr<FileSink>> create_unnamed(Env& env, const Path& folder);

  Result<void> append(ByteView bytes) override;
  int64_t size() const override { return size_; }
  // Makes the contents durable and closes; no call may follow. The name is durable
  // after Env::sync_folder. Without finish() the file stays, with contents that may be
  // lost.
  Result<void> finish();
  // The same for a file without a name. kConflict if the path exists.
  Result<void> finish_as(Env& env, const Path& path);

 private:
  explicit FileSink(std::unique_ptr<File> file) : file_(std::move(file)) {}

  const std::unique_ptr<File> file_;
  int64_t size_ = 0;
};

}  // namespace holdfast

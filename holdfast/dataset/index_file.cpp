#include "holdfast/dataset/index_file.h"

#include <algorithm>

#include "holdfast/dataset/sample_table.h"
#include "holdfast/formats/npy.h"

namespace holdfast {
namespace {

constexpr size_t kHeaderWords = 18;
constexpr int64_t kMark = 0x3158444946444C48;  // "HLDFIDX1"; changes with the format
constexpr int64_t kNpyBytes = 128;              // the header of the .npy file
constexpr int64_t kWord = sizeof(int64_t);

using HeaderWords = std::array<int64_t, kHeaderWords>;

Bytes encode(const int64_t* words, size_t count) {
  Bytes bytes(count * sizeof(int64_t));
  for (size_t i = 0; i < count; ++i) {
    store_little_endian(static_cast<uint64_t>(words[i]), ByteSpan(bytes).subspan(i * 8));
  }
  return bytes;
}

int64_t digest_of(const HeaderWords& words) {
  return static_cast<int64_t>(xxh3_128(encode(words.data(), kHeaderWords - 1)).low);
}

void put(const IndexedFile& file, int64_t* words) {
  words[0] = file.bytes;
  words[1] = file.modified;
  words[2] = static_cast<int64_t>(file.digest.high);
  words[3] = static_cast<int64_t>(file.digest.low);
}

IndexedFile get(const int64_t* words) {
  return {.bytes = words[0],
          .modified = words[1],
          .digest = {static_cast<uint64_t>(words[2]), static_cast<uint64_t>(words[3])}};
}

HeaderWords words_of(const IndexHeader& header) {
  HeaderWords words{kMark, static_cast<int64_t>(header.kind), header.dtype, header.words};
  put(header.file, &words[4]);
  put(header.table_file, &words[8]);
  words[12] = static_cast<int64_t>(header.words_digest.high);
  words[13] = static_cast<int64_t>(header.words_digest.low);
  words[17] = digest_of(words);
  return words;
}

// The header in the words, or nullopt if they are none.
std::optional<IndexHeader> header_of(const HeaderWords& words) {
  if (words[0] != kMark || words[17] != digest_of(words)) return std::nullopt;
  return IndexHeader{.kind = static_cast<CorpusKind>(words[1]),
                     .dtype = words[2],
                     .file = get(&words[4]),
                     .table_file = get(&words[8]),
                     .words = words[3],
                     .words_digest = {static_cast<uint64_t>(words[12]),
                                      static_cast<uint64_t>(words[13])}};
}

int64_t nanoseconds(WallTime time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

Result<void> check_same(Env& env, const Path& file, const IndexedFile& indexed) {
  const FileInfo info = HOLDFAST_TRY(env.info(file));
  const char* const way_out = "expected the file as it was, or a new index by `holdfast "
                              "index`";
  if (info.size != indexed.bytes) {
    return conflict("{}: {} bytes, and {} when it was indexed; {}", file.native(), info.size,
                    indexed.bytes, way_out);
  }
  if (nanoseconds(info.modified) == indexed.modified) return {};
  return conflict("{}: was changed after it was indexed; {}", file.native(), way_out);
}

Result<void> check_files(Env& env, const Path& file, const IndexHeader& header) {
  HOLDFAST_TRY(check_same(env, file, header.file));
  if (header.kind != CorpusKind::kMegatron) return {};
  return check_same(env, megatron_table_of(file), header.table_file);
}

// Writes the words of a table as they come.
class TableWriter {
 public:
  explicit TableWriter(File& file) : file_(file) { buffer_.reserve(kMost); }

  Result<void> append(int64_t word) {
    buffer_.push_back(word);
    return buffer_.size() < kMost ? Result<void>() : flush();
  }

  Result<void> flush() {
    const Bytes bytes = encode(buffer_.data(), buffer_.size());
    constexpr int64_t kBegin = kNpyBytes + static_cast<int64_t>(kHeaderWords) * kWord;
    HOLDFAST_TRY(file_.write_at(kBegin + words_ * kWord, bytes));
    digest_.append(bytes);
    words_ += std::ssize(buffer_);
    buffer_.clear();
    return {};
  }

  int64_t words() const { return words_; }
  Digest128 digest() const { return digest_.digest(); }

 private:
  static constexpr size_t kMost = 1 << 16;

  File& file_;
  std::vector<int64_t> buffer_;
  int64_t words_ = 0;
  Xxh3Stream digest_;
};

// Scans the file and its .idx file, if it has one. Fills all of the header but the words.
Result<void> scan(Env& env, const Path& path, IndexHeader& header, const AppendWord& append,
                  const Progress& progress) {
  const FileInfo before = HOLDFAST_TRY(env.info(path));
  const auto source = HOLDFAST_TRY(FileSource::open(env, path));
  ScannedFile file(*source, progress);
  if (header.kind == CorpusKind::kText) HOLDFAST_TRY(scan_lines(file, append));
  if (header.kind == CorpusKind::kTar) HOLDFAST_TRY(scan_tar(file, append));
  if (header.kind == CorpusKind::kRecords) HOLDFAST_TRY(scan_records(file, append));
  if (header.kind == CorpusKind::kMegatron) {
    const Path idx_path = megatron_table_of(path);
    const FileInfo idx_info = HOLDFAST_TRY(env.info(idx_path));
    const auto idx_source = HOLDFAST_TRY(FileSource::open(env, idx_path));
    ScannedFile idx(*idx_source, {});
    header.dtype = HOLDFAST_TRY(scan_megatron(idx, file.size(), append));
    header.table_file = {.bytes = idx.size(),
                         .modified = nanoseconds(idx_info.modified),
                         .digest = HOLDFAST_TRY(idx.finish())};
  }
  header.file = {.bytes = file.size(),
                 .modified = nanoseconds(before.modified),
                 .digest = HOLDFAST_TRY(file.finish())};
  return check_files(env, path, header);  // nobody may write to it meanwhile
}

// A file that is removed unless it gets its name, also if a progress callback throws.
class TemporaryFile {
 public:
  TemporaryFile(Env& env, Path path) : env_(env), path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!is_named_) static_cast<void>(env_.remove_file(path_));
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const Path& path() const { return path_; }
  Result<void> rename(const Path& to) {
    HOLDFAST_TRY(env_.rename(path_, to));
    is_named_ = true;
    return {};
  }

 private:
  Env& env_;
  const Path path_;
  bool is_named_ = false;
};

Result<void> write_index(Env& env, const Path& file, const Path& temporary,
                         CorpusKind kind, const Progress& progress) {
  const auto opened = env.open(temporary, {.mode = OpenMode::kTruncate});
  if (!opened.ok()) {
    return opened.error().within("the index can lie elsewhere (--to, index=)");
  }
  const std::unique_ptr<File>& into = *opened;
  TableWriter table(*into);
  IndexHeader header{.kind = kind};
  const AppendWord append = [&](int64_t word) { return table.append(word); };
  HOLDFAST_TRY(scan(env, file, header, append, progress));
  HOLDFAST_TRY(table.flush());
  header.words = table.words();
  header.words_digest = table.digest();
  const auto all = static_cast<int64_t>(kHeaderWords) + header.words;
  const Bytes npy = write_npy_header(Dtype::kI64, HOLDFAST_TRY(Shape::create(std::array{all})));
  HOLDFAST_CHECK(std::ssize(npy) == kNpyBytes, "{} bytes", npy.size());
  HOLDFAST_TRY(into->write_at(0, npy));
  HOLDFAST_TRY(into->write_at(kNpyBytes, encode(words_of(header).data(), kHeaderWords)));
  HOLDFAST_TRY(into->sync_data());
  return into->close();
}

// Waits for the lock of a file. Null if the file cannot be locked.
Result<std::unique_ptr<File>> lock_file(Env& env, const Path& path, OpenMode mode) {
  auto file = HOLDFAST_TRY(env.open(path, {.mode = mode}));
  while (true) {
    const auto locked = file->try_lock(LockKind::kExclusive);
    if (!locked.ok() && locked.error().code() == ErrorCode::kUnsupported) {
      return std::unique_ptr<File>();
    }
    if (HOLDFAST_TRY(locked)) return file;
    env.sleep_for(std::chrono::milliseconds(50));
  }
}

// Takes the lock that lets one process index a file while others wait: that of the file
// itself, or that of an empty file beside the index if the file is an object. Null if it
// cannot be locked: then each process makes the index, and they are all equal.
Result<std::unique_ptr<File>> lock_index(Env& env, const Path& file, const Path& index) {
  if (!is_object(file)) return lock_file(env, file, OpenMode::kRead);
  return lock_file(env, index.native() + ".lock", OpenMode::kAppend);
}

}  // namespace

Result<IndexHeader> read_index_header(const Source& source) {
  const auto damaged = [&](int64_t byte) {
    return corrupt("{}: is no index of a file, or is damaged at byte {}; expected one that "
                   "`holdfast index` wrote",
                   source.name(), byte);
  };
  constexpr int64_t kBytes = kNpyBytes + static_cast<int64_t>(kHeaderWords) * kWord;
  if (source.size() < kBytes) return damaged(source.size());
  const Bytes bytes = HOLDFAST_TRY(
      source.read_bytes(kNpyBytes, static_cast<int64_t>(kHeaderWords) * kWord));
  HeaderWords words{};
  for (size_t i = 0; i < kHeaderWords; ++i) {
    const ByteView at = ByteView(bytes).subspan(i * sizeof(int64_t));
    words[i] = static_cast<int64_t>(load_little_endian<uint64_t>(at));
  }
  const std::optional<IndexHeader> header = header_of(words);
  if (!header || header->words < 0) return damaged(kNpyBytes);
  const int64_t rest = source.size() - kBytes;
  if (rest % kWord != 0 || rest / kWord != header->words) {
    return corrupt("{}: the index has {} bytes; expected {} words behind byte {}",
                   source.name(), source.size(), header->words, kBytes);
  }
  return *header;
}

Result<FileIndex> FileIndex::open(Env& env, const Path& file, const Path& path,
                                  CorpusKind kind) {
  const auto source = HOLDFAST_TRY(FileSource::open(env, path));
  const IndexHeader header = HOLDFAST_TRY(read_index_header(*source));
  if (header.kind != kind) {
    return conflict("{}: is the index of a file of another kind; expected one of {}, so "
                    "another folder for it (--to, index=)",
                    path.native(), name_of(kind));
  }
  HOLDFAST_TRY(check_files(env, file, header));
  MappedFile map = HOLDFAST_TRY(MappedFile::open(path, source->size()));
  return FileIndex(path, std::move(map), header);
}

int64_t FileIndex::samples() const {
  if (header_.kind == CorpusKind::kTar) return header_.words / 2;
  return std::max<int64_t>(header_.words - 1, 0);
}

Result<void> FileIndex::check_table() const {
  const Digest128 seen = xxh3_128(table());
  if (seen == header_.words_digest) return {};
  return corrupt("{}: the table has the digest {}; expected {}", path_.native(), seen.hex(),
                 header_.words_digest.hex());
}

Result<FileIndex> make_index(Env& env, const Path& file, const Path& path,
                             CorpusKind kind, const Progress& progress) {
  if (is_object(path)) {
    return unsupported("{}: an index cannot lie in an object store; expected a folder for it "
                       "(--to, index=)",
                       path.native());
  }
  if (!env.info(folder_of(path)).ok()) {
    HOLDFAST_TRY(env.create_folders(folder_of(path)));
  }
  const auto lock = HOLDFAST_TRY(lock_index(env, file, path));
  if (lock != nullptr) {
    auto made = FileIndex::open(env, file, path, kind);  // by the process waited for
    if (made.ok()) return made;
  }
  const std::string mark = lock != nullptr ? "" : fmt::format("-{:016x}", env.random64());
  TemporaryFile temporary(env, path.native() + mark + ".tmp");
  HOLDFAST_TRY(write_index(env, file, temporary.path(), kind, progress));
  HOLDFAST_TRY(temporary.rename(path));
  return FileIndex::open(env, file, path, kind);
}

Result<void> check_index(Env& env, const Path& file, const FileIndex& index,
                         const Progress& progress) {
  HOLDFAST_TRY(index.check_table());
  IndexHeader seen{.kind = index.header().kind};
  Xxh3Stream table;
  const AppendWord append = [&](int64_t word) -> Result<void> {
    table.append(encode(&word, 1));
    return {};
  };
  HOLDFAST_TRY(scan(env, file, seen, append, progress));
  const IndexHeader& want = index.header();
  const bool is_equal = seen.file.digest == want.file.digest &&
                        seen.table_file.digest == want.table_file.digest;
  if (is_equal && table.digest() == want.words_digest) return {};
  return corrupt("{}: has the digest {}; expected {}, as when it was indexed", file.native(),
                 seen.file.digest.hex(), want.file.digest.hex());
}

}  // namespace holdfast

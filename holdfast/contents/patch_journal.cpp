// Encodes and decodes the journal of a patch.
//
//   "HFPATCH1", the number of files, and for each file: its name, its sizes before and
//   after, the number of changes, and for each change: offset, lengths of the bytes
//   before and after, these bytes. Then the XXH3-128 of all that. Numbers have 8 bytes,
//   little-endian; a name has its length before it.
#include "holdfast/base/xxh3.h"
#include "holdfast/contents/patch_journal_internal.h"

namespace holdfast {
namespace {

constexpr std::string_view kJournalMark = "HFPATCH1";
constexpr size_t kDigestBytes = 32;

void append(Bytes& out, ByteView bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append(Bytes& out, int64_t number) {
  std::array<std::byte, 8> bytes{};
  store_little_endian(static_cast<uint64_t>(number), bytes);
  append(out, ByteView(bytes));
}

// Reads numbers and bytes from the front. After the first that is not there, `failed`
// is true and everything reads as 0 or empty.
class JournalReader {
 public:
  explicit JournalReader(ByteView rest) : rest_(rest) {}

  bool failed() const { return failed_; }
  bool at_end() const { return rest_.empty(); }

  ByteView bytes(int64_t count) {
    if (failed_ || count < 0 || count > std::ssize(rest_)) {
      failed_ = true;
      return {};
    }
    const ByteView front = rest_.first(static_cast<size_t>(count));
    rest_ = rest_.subspan(static_cast<size_t>(count));
    return front;
  }

  int64_t number() {
    const ByteView front = bytes(8);
    if (front.empty()) return 0;
    return static_cast<int64_t>(load_little_endian<uint64_t>(front));
  }

 private:
  ByteView rest_;
  bool failed_ = false;
};

FilePatch read_file_patch(JournalReader& reader, const Path& folder) {
  FilePatch file;
  file.file = folder / Path(text_of(reader.bytes(reader.number())));
  file.size_before = reader.number();
  file.size_after = reader.number();
  for (int64_t left = reader.number(); left > 0 && !reader.failed(); --left) {
    Change change{.offset = reader.number()};
    const int64_t before = reader.number(), after = reader.number();
    change.before = copy_of(reader.bytes(before));
    change.after = copy_of(reader.bytes(after));
    file.changes.push_back(std::move(change));
  }
  return file;
}

// The bytes of the journal without its digest. Empty if the digest does not match.
ByteView checked_body(ByteView bytes) {
  if (bytes.size() < kJournalMark.size() + kDigestBytes) return {};
  const ByteView body = bytes.first(bytes.size() - kDigestBytes);
  const bool same = text_of(bytes.last(kDigestBytes)) == xxh3_128(body).hex();
  return same && text_of(body).starts_with(kJournalMark) ? body : ByteView();
}

}  // namespace

Result<std::string> name_in_journal(const Patch& patch, const Path& file) {
  const Path name = file.lexically_relative(folder_of(patch.path)).lexically_normal();
  if (!name.empty() && name != "." && *name.begin() != ".." && name.has_filename()) {
    return name.native();
  }
  return invalid("{}: is not in the folder of {}; expected a file beside it or below",
                 file.native(), patch.path.native());
}

Bytes encode_journal(const Patch& patch) {
  Bytes out;
  append(out, bytes_of(kJournalMark));
  append(out, std::ssize(patch.files));
  for (const FilePatch& file : patch.files) {
    const std::string name = name_in_journal(patch, file.file).value();
    append(out, std::ssize(name));
    append(out, bytes_of(name));
    append(out, file.size_before);
    append(out, file.size_after);
    append(out, std::ssize(file.changes));
    for (const Change& change : file.changes) {
      append(out, change.offset);
      append(out, std::ssize(change.before));
      append(out, std::ssize(change.after));
      append(out, change.before);
      append(out, change.after);
    }
  }
  append(out, bytes_of(xxh3_128(out).hex()));
  return out;
}

Result<Patch> decode_journal(ByteView bytes, const Path& journal) {
  const ByteView body = checked_body(bytes);
  JournalReader reader(body);
  (void)reader.bytes(std::ssize(kJournalMark));
  Patch patch{.path = journal};
  for (int64_t left = reader.number(); left > 0 && !reader.failed(); --left) {
    patch.files.push_back(read_file_patch(reader, folder_of(journal)));
    if (reader.failed()) break;
    const Result<std::string> name = name_in_journal(patch, patch.files.back().file);
    if (!name.ok())
      return name.error().as(ErrorCode::kCorrupt).within(journal.native());
  }
  if (!reader.failed() && reader.at_end()) return patch;
  return corrupt(
      "{}: this journal of a patch is damaged, so it cannot tell which bytes were "
      "changed; expected the bytes that were written",
      journal.native());
}

}  // namespace holdfast

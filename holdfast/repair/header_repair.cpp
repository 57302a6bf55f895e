#include "holdfast/repair/header_repair.h"

#include <algorithm>
#include <optional>

#include "holdfast/corruption/alter.h"
#include "holdfast/env/flipped_env.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/seal_check.h"
#include "holdfast/tensorflow/bundle_index.h"

namespace holdfast {
namespace {

constexpr int64_t kSuperblock = 96;    // of HDF5, in its longest form
constexpr int64_t kTail = 4 << 20;     // in which a zip directory is looked for
constexpr int64_t kMostFitting = 64;   // bits whose flip lets the file be opened

struct Region {
  Path file;
  int64_t offset = 0;
  int64_t bytes = 0;
};

uint16_t u16(ByteView bytes, int64_t at) {
  return load_little_endian<uint16_t>(bytes.subspan(static_cast<size_t>(at)));
}
uint32_t u32(ByteView bytes, int64_t at) {
  return load_little_endian<uint32_t>(bytes.subspan(static_cast<size_t>(at)));
}

// The end of a zip archive, in which entries of the directory are looked for.
class ZipTail {
 public:
  static Result<ZipTail> read(const Source& source) {
    const int64_t begin = std::max<int64_t>(0, source.size() - kTail);
    return ZipTail(source, begin,
                   HOLDFAST_TRY(source.read_bytes(begin, source.size() - begin)));
  }

  // What may be damaged: the bytes between entries that are as they should be, and the
  // headers of records.
  std::vector<Region> regions(const Path& path) const {
    constexpr int64_t kBefore = 512, kHeader = 30, kName = 256;
    std::vector<Region> all;
    const auto add = [&](int64_t from, int64_t to) {
      from = std::max<int64_t>(from, 0);
      to = std::min(to, source_.size());
      if (from < to) all.push_back({path, from, to - from});
    };
    add(0, kHeader + kName);
    std::optional<int64_t> end;  // of the last entry that is as it should be
    for (int64_t at = 0; at + kEntry <= size(); ++at) {
      if (u32(bytes_, at) != kEntryMark) continue;
      const int64_t next = at + entry_bytes(at);
      const int64_t header = u32(bytes_, at + 42);
      const bool agrees = has_header(at, header);
      // The header may be damaged, or the offset that says where it is.
      if (!agrees) add(header, header + kHeader + kName);
      if (!agrees || !is_mark(next)) continue;
      const int64_t gap = end ? begin_ + *end : begin_ + at - kBefore;
      if (!end || *end < at) add(gap, begin_ + at);
      end = next;
      at = next - 1;
    }
    add(end ? begin_ + *end : source_.size() - kBefore, source_.size());
    return all;
  }

 private:
  static constexpr uint32_t kEntryMark = 0x02014b50, kHeaderMark = 0x04034b50,
                            kEndMark = 0x06054b50, kEnd64Mark = 0x06064b50;
  static constexpr int64_t kEntry = 46;

  ZipTail(const Source& source, int64_t begin, Bytes bytes)
      : source_(source), begin_(begin), bytes_(std::move(bytes)) {}

  int64_t size() const { return std::ssize(bytes_); }
  int64_t entry_bytes(int64_t at) const {
    return kEntry + u16(bytes_, at + 28) + u16(bytes_, at + 30) + u16(bytes_, at + 32);
  }
  bool is_mark(int64_t at) const {
    if (at + 4 > size()) return false;
    const uint32_t mark = u32(bytes_, at);
    return mark == kEntryMark || mark == kEndMark || mark == kEnd64Mark;
  }
  // Whether the header of the record has the same name. An offset that only the zip64
  // field has is not looked at.
  bool has_header(int64_t at, int64_t header) const {
    if (header == 0xffffffff) return true;
    const int64_t name = u16(bytes_, at + 28);
    if (at + kEntry + name > size()) return false;
    const Result<Bytes> there = source_.read_bytes(header, 30 + name);
    if (!there.ok() || u32(*there, 0) != kHeaderMark || u16(*there, 26) != name) {
      return false;
    }
    return std::ranges::equal(
        ByteView(*there).subspan(30),
        ByteView(bytes_).subspan(static_cast<size_t>(at + kEntry),
                                 static_cast<size_t>(name)));
  }

  const Source& source_;
  const int64_t begin_;  // of the bytes, in the file
  const Bytes bytes_;
};

Result<std::vector<Region>> regions_of(Env& env, const Found& found) {
  const std::string_view format = found.format->name;
  if (format == "tensorflow") {
    const Path index = HOLDFAST_TRY(bundle::find_index(env, found.path));
    return std::vector<Region>{{index, 0, HOLDFAST_TRY(env.info(index)).size}};
  }
  const bool zip = format == "torch" || format == "npz" || format == "keras";
  if (!zip && format != "safetensors" && format != "hdf5") {
    return unsupported("{}: the format {} has no header that is searched for a flipped bit",
                       found.path.native(), format);
  }
  const auto source = HOLDFAST_TRY(FileSource::open(env, found.path));
  if (zip) return HOLDFAST_TRY(ZipTail::read(*source)).regions(found.path);
  int64_t bytes = std::min(source->size(), kSuperblock);
  if (format == "safetensors") {
    if (source->size() < 8) return corrupt("{}: has no header", found.path.native());
    const auto length = load_little_endian<uint64_t>(
        HOLDFAST_TRY(source->read_bytes(0, 8)));
    // A length that cannot be is damaged itself.
    bytes = length <= static_cast<uint64_t>(source->size() - 8)
                ? 8 + static_cast<int64_t>(length)
                : 8;
  }
  return std::vector<Region>{{found.path, 0, bytes}};
}

Result<bool> misses_sealed(Env& env, const Found& found, const Contents& contents) {
  const Result<std::vector<SealedTensor>> seals = read_seals(env, found.path);
  if (!seals.ok()) return false;
  return std::ranges::any_of(*seals, [&](const SealedTensor& sealed) {
    const auto id = contents.collection.find(sealed.name);
    if (!id) return true;
    const Tensor& tensor = contents.collection.tensor(*id);
    return tensor.dtype != sealed.dtype || tensor.shape != sealed.shape;
  });
}

bool can_be_opened(Env& env, const Found& found) {
  const Result<Contents> contents = found.format->open(env, found.path);
  if (!contents.ok()) return false;
  const Result<bool> misses = misses_sealed(env, found, *contents);
  return misses.ok() && !*misses;
}

// Reads everything.
bool is_whole(Env& env, const Found& found) {
  bool checked = true;
  if (found.format->verify != nullptr) {
    const Result<FormatReport> report = found.format->verify(env, found.path, {});
    if (!report.ok() || !report->damage.empty()) return false;
    // Many flips let a file of torch be opened that has no checksums (torch < 1.6).
    checked = report->checked || !found.format->name.starts_with("torch");
  }
  const Result<std::vector<SealedTensor>> seals = read_seals(env, found.path);
  if (!seals.ok()) return checked;
  const Result<Contents> contents = found.format->open(env, found.path);
  if (!contents.ok()) return false;
  const auto broken = check_seals(*contents, *seals);
  return broken.ok() && broken->empty();
}

// Regions without those bytes that an earlier one has.
std::vector<Region> without_overlaps(std::vector<Region> regions) {
  std::ranges::sort(regions, {}, &Region::offset);
  std::vector<Region> apart;
  int64_t end = 0;
  for (Region& region : regions) {
    const int64_t last = region.offset + region.bytes;
    region.offset = std::max(region.offset, end);
    region.bytes = last - region.offset;
    if (region.bytes <= 0) continue;
    end = last;
    apart.push_back(std::move(region));
  }
  return apart;
}

// Tries the bits of a header one after the other.
class BitSearch {
 public:
  BitSearch(Env& env, const Found& found, const HeaderSearch& limits,
            std::vector<Region> regions)
      : env_(env),
        found_(found),
        limits_(limits),
        regions_(std::move(regions)),
        deadline_(env.now() + limits.time) {
    for (const Region& region : regions_) bits_ += 8 * region.bytes;
  }

  // The flips with which the file is whole.
  Result<std::vector<FlippedByte>> run() {
    if (bits_ > 8 * kMostHeader) {
      return corrupt(
          "{}: {} bytes of the header may be damaged, and nothing was tried; expected at "
          "most {} to look for a flipped bit",
          found_.path.native(), bits_ / 8, kMostHeader);
    }
    for (const Region& region : regions_) HOLDFAST_TRY(search(region));
    std::erase_if(fitting_, [&](const FlippedByte& byte) {
      flipped_.show(byte);
      return !is_whole(flipped_, found_);
    });
    return std::move(fitting_);
  }

 private:
  Result<void> search(const Region& region) {
    for (int64_t i = 0; i < 8 * region.bytes; ++i) {
      const FlippedByte byte{region.file, region.offset + i / 8,
                             static_cast<std::byte>(1 << (i % 8))};
      if (env_.now() >= deadline_) return out_of_time(byte.offset);
      flipped_.show(byte);
      if (can_be_opened(flipped_, found_)) fitting_.push_back(byte);
      ++tried_;
      if (limits_.progress) limits_.progress(tried_, bits_);
      if (std::ssize(fitting_) > kMostFitting) {
        return corrupt("{}: more than {} bits explain the damage of the header; expected "
                       "another copy",
                       found_.path.native(), kMostFitting);
      }
    }
    return {};
  }

  Error out_of_time(int64_t offset) const {
    return corrupt(
        "{}: {} of {} bits that may be damaged in its header were tried in {} s, up to "
        "byte {}, and the others were not; expected a longer search (--search), or "
        "another copy",
        found_.path.native(), tried_, bits_,
        std::chrono::duration_cast<std::chrono::seconds>(limits_.time).count(), offset);
  }

  Env& env_;
  const Found& found_;
  const HeaderSearch& limits_;
  const std::vector<Region> regions_;
  const Instant deadline_;
  FlippedEnv flipped_{env_, {}};
  int64_t bits_ = 0, tried_ = 0;
  std::vector<FlippedByte> fitting_;
};

std::string name_of_file(const std::vector<NamedFile>& files, const Path& path) {
  const auto named = std::ranges::find(files, path, &NamedFile::path);
  return named == files.end() ? path.filename().native() : named->name;
}

// Whether something besides the header says that the tensors are right.
bool has_checks(Env& env, const Found& found) {
  const std::string_view format = found.format->name;
  return (format != "safetensors" && format != "hdf5") ||
         read_seals(env, found.path).ok();
}

// The flips with which the file is whole.
Result<std::vector<FlippedByte>> find_whole(Env& env, const Found& found,
                                            const HeaderSearch& limits) {
  std::vector<Region> regions = HOLDFAST_TRY(regions_of(env, found));
  return BitSearch(env, found, limits, without_overlaps(std::move(regions))).run();
}

// What opening the file has said, in a sentence about the file.
std::string what_is_damaged(const Found& found, const Result<Contents>& opened) {
  return opened.ok() ? found.path.native() + ": a sealed tensor is missing"
                     : opened.error().message();
}

}  // namespace

Result<bool> has_bad_header(Env& env, const Found& found) {
  const Result<Contents> contents = found.format->open(env, found.path);
  if (contents.ok()) return misses_sealed(env, found, *contents);
  switch (contents.error().code()) {
    case ErrorCode::kCorrupt: return true;
    case ErrorCode::kInvalid:
    case ErrorCode::kUnsupported:
      // More likely the file is whole and newer than this code. Only a checksum or a seal
      // can show that a flipped bit is the cause.
      if (has_checks(env, found)) return true;
      return contents.error();
    // A file of a folder that its index names is missing.
    case ErrorCode::kNotFound: return contents.error().as(ErrorCode::kCorrupt);
    default: return contents.error();
  }
}

Result<RepairReport> plan_by_header(Env& env, const Found& found,
                                    const HeaderSearch& limits) {
  const Result<std::vector<FlippedByte>> tried = find_whole(env, found, limits);
  const Result<Contents> opened = found.format->open(env, found.path);
  const bool found_one = tried.ok() && tried->size() == 1;
  // A file that this code cannot read is not called damaged without a reason.
  if (!found_one && !opened.ok() && opened.error().code() != ErrorCode::kCorrupt) {
    return opened.error();
  }
  if (!tried.ok()) {
    return corrupt("{}; {}", what_is_damaged(found, opened), tried.error().message());
  }
  const std::vector<FlippedByte>& fitting = *tried;
  if (fitting.size() != 1) {
    return corrupt("{}; {} flipped bit of the header explains it, and expected is one",
                   what_is_damaged(found, opened),
                   fitting.empty() ? "no" : "more than one");
  }
  const FlippedByte& byte = fitting.front();
  const auto source = HOLDFAST_TRY(FileSource::open(env, byte.path));
  const std::byte seen = HOLDFAST_TRY(source->read_bytes(byte.offset, 1))[0];
  const PlannedByte change{
      name_of_file(HOLDFAST_TRY(files_of(env, found)), byte.path), byte.offset, seen,
      seen ^ byte.mask};
  RepairReport report;
  report.flips.fault = "repair";
  report.flips.bytes = {change};
  report.mended = {{.file = byte.path.filename().native(),
                    .what = fmt::format("byte {}: {} -> {}, the only bit with which the "
                                        "file can be read",
                                        byte.offset, to_hex(change.before),
                                        to_hex(change.after)),
                    .rung = "header"}};
  return report;
}

}  // namespace holdfast

#include "holdfast/archive/zip_reader.h"

#include <algorithm>
#include <optional>

#include "holdfast/archive/inflated_source.h"
#include "holdfast/archive/zip_directory_internal.h"
#include "holdfast/archive/zip_internal.h"
#include "holdfast/base/deflate.h"

namespace holdfast {
namespace {

using zip::DirectoryEntry;

constexpr size_t kVerifyBytes = size_t{1} << 20;

Result<void> check_method(const Source& source, const DirectoryEntry& entry,
                          ZipOptions options) {
  if (entry.method == zip::kStored) return {};
  if (entry.method != zip::kDeflated || !options.deflated) {
    return unsupported(
        "{}: entry {}: is compressed by method {}; expected 0 (stored){}",
        source.name(), entry.name, entry.method,
        options.deflated ? " or 8 (deflated)" : "");
  }
  if (entry.size <= most_inflated(entry.packed_size)) return {};
  return corrupt("{}: entry {}: {} bytes are said to decode to {}; expected at most {}",
                 source.name(), entry.name, entry.packed_size, entry.size,
                 most_inflated(entry.packed_size));
}

// Returns where the bytes of the record begin. The local header repeats what the
// directory says. If the two differ, tools would see different archives in the same
// file, so this is refused.
Result<int64_t> check_local_header(const Source& source, const DirectoryEntry& entry) {
  const auto name_size = static_cast<int64_t>(entry.name.size());
  const Bytes header = HOLDFAST_TRY(
      source.read_bytes(entry.header_offset, zip::kLocalBytes + name_size));
  const auto u16 = [&](size_t at) {
    return load_little_endian<uint16_t>(ByteView(header).subspan(at));
  };
  const auto u32 = [&](size_t at) {
    return load_little_endian<uint32_t>(ByteView(header).subspan(at));
  };
  if (u32(0) != zip::kLocalMark) {
    return corrupt("{}: entry {}: has no header at byte {}", source.name(), entry.name,
                   entry.header_offset);
  }
  if (u16(26) != name_size ||
      text_of(header).substr(static_cast<size_t>(zip::kLocalBytes)) != entry.name) {
    return corrupt("{}: entry {}: its header at byte {} has another name",
                   source.name(), entry.name, entry.header_offset);
  }
  if (u16(6) != entry.flags || u16(8) != entry.method) {
    return corrupt(
        "{}: entry {}: flags {} and method {} in its header; expected {} and {}",
        source.name(), entry.name, u16(6), u16(8), entry.flags, entry.method);
  }
  const bool has_descriptor = (entry.flags & zip::kHasDescriptor) != 0;
  for (const auto& [at, size] :
       {std::pair(size_t{18}, entry.packed_size), std::pair(size_t{22}, entry.size)}) {
    const bool same = u32(at) == size || u32(at) == zip::kIn64;
    if (!same && !(has_descriptor && u32(at) == 0)) {
      return corrupt("{}: entry {}: {} bytes in its header; expected {}", source.name(),
                     entry.name, u32(at), size);
    }
  }
  return entry.header_offset + zip::kLocalBytes + name_size + u16(28);
}

// Checks that each entry ends before the next one begins, and the last one before the
// directory. Entries are in the order of their headers.
Result<void> check_no_overlap(const Source& source,
                              const std::vector<DirectoryEntry>& listed,
                              const std::vector<ZipEntry>& entries, int64_t directory) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const bool last = i + 1 == entries.size();
    const int64_t limit = last ? directory : listed[i + 1].header_offset;
    const ZipEntry& entry = entries[i];
    if (entry.offset > limit || entry.packed_size > limit - entry.offset) {
      return corrupt("{}: entry {}: {} bytes at {} reach into {}, which begins at {}",
                     source.name(), entry.name, entry.packed_size, entry.offset,
                     last ? "the directory" : entries[i + 1].name, limit);
    }
  }
  return {};
}

std::string lower(std::string_view name) {
  std::string text(name);
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace

std::string ZipArchive::key_of(std::string_view name) const {
  return options_.ignore_case ? lower(name) : std::string(name);
}

// Makes records findable by name, and refuses names that are there twice.
Result<void> ZipArchive::add_names() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (by_name_.emplace(key_of(entries_[i].name), i).second) continue;
    return corrupt("{}: entry {}: is listed twice; expected it once", source_->name(),
                   entries_[i].name);
  }
  return {};
}

Result<ZipArchive> ZipArchive::open(std::shared_ptr<const Source> source,
                                    ZipOptions options) {
  zip::Directory directory = HOLDFAST_TRY(zip::read_directory(*source));
  ZipArchive archive(std::move(source), options);
  archive.directory_offset_ = directory.offset;
  if (!directory.entries.empty()) {
    archive.first_listed_ = directory.entries.front().name;
  }
  std::ranges::sort(directory.entries, {}, &DirectoryEntry::header_offset);
  archive.entries_.reserve(directory.entries.size());
  for (const DirectoryEntry& entry : directory.entries) {
    HOLDFAST_TRY(check_method(archive.source(), entry, options));
    const int64_t offset = HOLDFAST_TRY(check_local_header(archive.source(), entry));
    archive.entries_.push_back(
        {.name = entry.name,
         .offset = offset,
         .size = entry.size,
         .packed_size = entry.packed_size,
         .crc = entry.crc,
         .deflated = entry.method == zip::kDeflated,
         .header_offset = entry.header_offset,
         .listed_offset = entry.listed_offset,
         .has_descriptor = (entry.flags & zip::kHasDescriptor) != 0});
  }
  HOLDFAST_TRY(check_no_overlap(archive.source(), directory.entries, archive.entries_,
                                directory.offset));
  HOLDFAST_TRY(archive.add_names());
  return archive;
}

Result<std::vector<std::string>> list_zip(const Source& source) {
  zip::Directory directory = HOLDFAST_TRY(zip::read_directory(source));
  std::vector<std::string> names;
  for (DirectoryEntry& entry : directory.entries) {
    names.push_back(std::move(entry.name));
  }
  return names;
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto found = by_name_.find(key_of(name));
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

Result<void> ZipArchive::check_crc(const ZipEntry& entry, Crc32 seen) const {
  if (entry.crc == 0 || seen == entry.crc) return {};
  return corrupt("{}: entry {} has crc {:08x}; expected {:08x}", source_->name(),
                 entry.name, seen, entry.crc);
}

Result<Bytes> ZipArchive::read(const ZipEntry& entry, int64_t limit) const {
  if (entry.size > limit) {
    return corrupt("{}: entry {} is {} bytes, limit {}", source_->name(), entry.name,
                   entry.size, limit);
  }
  Bytes bytes = HOLDFAST_TRY(source_->read_bytes(entry.offset, entry.packed_size));
  if (entry.deflated) {
    bytes = HOLDFAST_TRY(inflate(bytes, entry.size, DeflateWrapper::kNone)
                             .within(name_of_record(entry)));
  }
  HOLDFAST_TRY(check_crc(entry, crc32(bytes)));
  return bytes;
}

std::shared_ptr<const Source> ZipArchive::open_record(const ZipEntry& entry) const {
  if (entry.deflated) {
    return std::make_shared<InflatedSource>(source_, entry, name_of_record(entry));
  }
  return std::make_shared<SliceSource>(source_, entry.offset, entry.size,
                                       name_of_record(entry));
}

std::string ZipArchive::name_of_record(const ZipEntry& entry) const {
  return fmt::format("{}: entry {}", source_->name(), entry.name);
}

Result<Crc32> ZipArchive::compute_crc(const ZipEntry& entry) const {
  // A decoding source would fail for a wrong CRC, and here it is only computed.
  ZipEntry unchecked = entry;
  unchecked.crc = 0;
  const auto record = open_record(unchecked);
  Bytes buffer(std::min(kVerifyBytes, static_cast<size_t>(entry.size)));
  Crc32 crc = 0;
  for (int64_t done = 0; done < entry.size;) {
    const auto count = std::min(buffer.size(), static_cast<size_t>(entry.size - done));
    const ByteSpan part = ByteSpan(buffer).first(count);
    HOLDFAST_TRY(record->read(done, part));
    crc = crc32_extend(crc, part);
    done += static_cast<int64_t>(count);
  }
  return crc;
}

Result<void> ZipArchive::verify(const ZipEntry& entry) const {
  return check_crc(entry, HOLDFAST_TRY(compute_crc(entry)));
}

Result<std::vector<int64_t>> ZipArchive::find_crcs(const ZipEntry& entry) const {
  std::vector<int64_t> found{entry.listed_offset + zip::kCentralCrc};
  const auto is_here = [&](int64_t at) -> Result<bool> {
    const Bytes bytes = HOLDFAST_TRY(source_->read_bytes(at, 4));
    return load_little_endian<uint32_t>(bytes) == entry.crc;
  };
  const int64_t local = entry.header_offset + zip::kLocalCrc;
  if (HOLDFAST_TRY(is_here(local))) found.push_back(local);
  if (!entry.has_descriptor) return found;
  // The mark before the CRC is usual, but a writer may leave it out.
  const int64_t behind = entry.offset + entry.packed_size;
  const Bytes mark = HOLDFAST_TRY(source_->read_bytes(behind, 4));
  const bool marked = load_little_endian<uint32_t>(mark) == zip::kDescriptorMark;
  for (const int64_t at : {behind + (marked ? 4 : 0), behind}) {
    if (!HOLDFAST_TRY(is_here(at))) continue;
    found.push_back(at);
    return found;
  }
  return corrupt("{}: entry {}: its CRC is not behind its bytes; expected {:08x} there",
                 source_->name(), entry.name, entry.crc);
}

}  // namespace holdfast

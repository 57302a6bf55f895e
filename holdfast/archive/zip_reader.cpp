#include "holdfast/archive/zip_reader.h"

#include <algorithm>
#include <optional>

#include "holdfast/archive/zip_directory_internal.h"
#include "holdfast/archive/zip_internal.h"

namespace holdfast {
namespace {

using zip::DirectoryEntry;

constexpr size_t kVerifyBytes = size_t{1} << 20;

Result<void> check_stored(const Source& source, const DirectoryEntry& entry) {
  if (entry.method == 0) return {};
  return unsupported("{}: entry {}: is compressed by method {}; expected 0 (stored)",
                     source.name(), entry.name, entry.method);
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
  for (const size_t at : {size_t{18}, size_t{22}}) {
    const bool same = u32(at) == entry.size || u32(at) == zip::kIn64;
    if (!same && !(has_descriptor && u32(at) == 0)) {
      return corrupt("{}: entry {}: {} bytes in its header; expected {}", source.name(),
                     entry.name, u32(at), entry.size);
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
    if (entry.offset > limit || entry.size > limit - entry.offset) {
      return corrupt("{}: entry {}: {} bytes at {} reach into {}, which begins at {}",
                     source.name(), entry.name, entry.size, entry.offset,
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

ZipArchive::ZipArchive(std::shared_ptr<const Source> source,
                       std::vector<ZipEntry> entries, std::string first_listed)
    : source_(std::move(source)),
      entries_(std::move(entries)),
      first_listed_(std::move(first_listed)) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    by_name_.emplace(lower(entries_[i].name), i);
  }
}

Result<ZipArchive> ZipArchive::open(std::shared_ptr<const Source> source) {
  zip::Directory directory = HOLDFAST_TRY(zip::read_directory(*source));
  std::string first =
      directory.entries.empty() ? std::string() : directory.entries.front().name;
  std::sort(directory.entries.begin(), directory.entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) {
              return a.header_offset < b.header_offset;
            });
  std::vector<ZipEntry> entries;
  entries.reserve(directory.entries.size());
  for (const DirectoryEntry& entry : directory.entries) {
    HOLDFAST_TRY(check_stored(*source, entry));
    const int64_t offset = HOLDFAST_TRY(check_local_header(*source, entry));
    entries.push_back({entry.name, offset, entry.size, entry.crc});
  }
  HOLDFAST_TRY(check_no_overlap(*source, directory.entries, entries, directory.offset));
  ZipArchive archive(std::move(source), std::move(entries), std::move(first));
  if (archive.by_name_.size() != archive.entries_.size()) {
    for (size_t i = 0; i < archive.entries_.size(); ++i) {
      const std::string& name = archive.entries_[i].name;
      if (archive.by_name_.at(lower(name)) != i) {
        return corrupt("{}: entry {}: is listed twice; expected it once",
                       archive.source().name(), name);
      }
    }
  }
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
  const auto found = by_name_.find(lower(name));
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
  Bytes bytes = HOLDFAST_TRY(source_->read_bytes(entry.offset, entry.size));
  HOLDFAST_TRY(check_crc(entry, crc32(bytes)));
  return bytes;
}

Result<void> ZipArchive::verify(const ZipEntry& entry) const {
  Bytes buffer(std::min(kVerifyBytes, static_cast<size_t>(entry.size)));
  Crc32 crc = 0;
  for (int64_t done = 0; done < entry.size;) {
    const auto count = std::min(buffer.size(), static_cast<size_t>(entry.size - done));
    const ByteSpan part = ByteSpan(buffer).first(count);
    HOLDFAST_TRY(source_->read(entry.offset + done, part));
    crc = crc32_extend(crc, part);
    done += static_cast<int64_t>(count);
  }
  return check_crc(entry, crc);
}

}  // namespace holdfast

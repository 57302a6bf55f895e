#include "holdfast/formats/zip_checked_source.h"

namespace holdfast {

std::shared_ptr<const CheckedSource> make_zip_checked_source(
    std::shared_ptr<const Source> inner, std::span<const ZipEntry> entries) {
  std::vector<CheckedRecord> records;
  for (const ZipEntry& entry : entries) {
    records.push_back({.name = "entry " + entry.name,
                       .offset = entry.offset,
                       .size = entry.size,
                       .crc = entry.crc == 0 ? std::nullopt : std::optional(entry.crc)});
  }
  return std::make_shared<CheckedSource>(std::move(inner), std::move(records),
                                         crc32_extend);
}

}  // namespace holdfast

#include "holdfast/formats/zip_verify.h"

#include <map>

#include "holdfast/formats/zip_patch.h"

namespace holdfast {
namespace {

// The names of the tensors in each record, by the number of the record.
std::map<size_t, std::vector<std::string>> tensors_of_records(
    const ZipArchive& archive, const Contents* contents) {
  std::map<size_t, std::vector<std::string>> names;
  if (contents == nullptr) return names;
  std::map<std::string, size_t> decoded;
  for (size_t i = 0; i < archive.entries().size(); ++i) {
    decoded[archive.name_of_record(archive.entries()[i])] = i;
  }
  const Layout& layout = contents->collection.layout();
  for (TensorId t = 0; t < contents->collection.tensors().size(); ++t) {
    const Tensor& tensor = contents->collection.tensor(t);
    if (tensor.shape.elements() == 0) continue;
    for (const Slice& slice : layout.slices(t)) {
      const Source& source = *contents->sources[layout.holder(slice.first)];
      const auto found = decoded.find(source.name());
      const Map map = layout.map(slice.first, bytes_of(tensor.dtype));
      const size_t record =
          found == decoded.end() ? record_at(archive, map.offset) : found->second;
      names[record].push_back(tensor.name);
    }
  }
  return names;
}

}  // namespace

Result<FormatReport> verify_zip(const ZipArchive& archive, const Contents* contents,
                                const Progress& progress) {
  FormatReport report{.bytes_read = archive.source().size(), .checked = true};
  const auto names = tensors_of_records(archive, contents);
  for (size_t i = 0; i < archive.entries().size(); ++i) {
    const ZipEntry& entry = archive.entries()[i];
    const Result<Crc32> crc = archive.compute_crc(entry);
    if (!crc.ok() && crc.error().code() != ErrorCode::kCorrupt) return crc.error();
    if (progress) {
      progress(entry.offset + entry.packed_size, archive.source().size());
    }
    const bool absent = entry.crc == 0 && entry.size > 0;
    report.checked = report.checked && !absent;
    if (crc.ok() && (absent || *crc == entry.crc)) continue;
    const auto found = names.find(i);
    report.damage.push_back(
        {.file = Path(archive.source().name()).filename().native(),
         .tensors = found == names.end() ? std::vector<std::string>() : found->second,
         .offset = entry.offset,
         .bytes = entry.packed_size,
         .what = crc.ok() ? fmt::format("entry {} has crc {:08x}; expected {:08x}",
                                        entry.name, *crc, entry.crc)
                          : crc.error().message()});
  }
  return report;
}

}  // namespace holdfast

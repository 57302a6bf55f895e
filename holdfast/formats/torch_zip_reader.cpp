// Opens torch's zip files: checks the archive and reads its pickle.
#include <algorithm>

#include "holdfast/formats/torch_zip.h"
#include "holdfast/formats/torch_zip_internal.h"
#include "holdfast/formats/zip_checked_source.h"
#include "holdfast/archive/zip_reader.h"

namespace holdfast {
namespace {

using torch_zip::OpenedArchive;

constexpr std::string_view kPickleName = "/data.pkl";
constexpr int64_t kMaxNoteBytes = 4096;
// The newest version of the format that torch's own reader accepts.
constexpr int kMaxVersion = 10;

// Finds the only folder of the archive, the one that has data.pkl. torch takes the
// folder of the first entry in the directory, so that entry must be in the same folder.
Result<std::string> find_folder(const ZipArchive& archive) {
  const std::string& file = archive.source().name();
  std::string folder;
  for (const ZipEntry& entry : archive.entries()) {
    const std::string_view top =
        std::string_view(entry.name).substr(0, entry.name.find('/'));
    if (entry.name.size() != top.size() + kPickleName.size() ||
        !entry.name.ends_with(kPickleName)) {
      continue;
    }
    if (!folder.empty()) {
      return corrupt("{}: both {} and {} have a data.pkl", file, folder, top);
    }
    folder = top;
  }
  if (folder.empty())
    return unsupported("{}: is a zip file, but not one of torch", file);
  const std::string& first = archive.first_listed();
  if (!first.starts_with(folder + "/")) {
    return corrupt("{}: lists {} first, but {} has the data.pkl", file, first, folder);
  }
  return folder;
}

// Reads a small record as text. Returns an empty text if the record is not there.
Result<std::string> read_small_record(const ZipArchive& archive,
                                      const std::string& name) {
  const ZipEntry* entry = archive.find(name);
  if (entry == nullptr) return std::string();
  return std::string(text_of(HOLDFAST_TRY(archive.read(*entry, kMaxNoteBytes))));
}

Result<void> check_byte_order_and_version(const ZipArchive& archive,
                                          const std::string& folder) {
  const std::string& file = archive.source().name();
  // Files of torch before 2.1 have no byteorder record. In practice they are
  // little-endian.
  const auto order = HOLDFAST_TRY(read_small_record(archive, folder + "/byteorder"));
  if (!order.empty() && order != "little") {
    return unsupported("{}: byte order is \"{}\"; expected little", file, order);
  }
  const auto version = HOLDFAST_TRY(read_small_record(archive, folder + "/version"));
  const int number = std::atoi(version.c_str());
  if (number < 1 || number > kMaxVersion) {
    return unsupported("{}: version \"{}\" of the format; expected 1 to {}", file,
                       std::string_view(version).substr(0, version.find('\n')),
                       kMaxVersion);
  }
  return {};
}

}  // namespace

namespace torch_zip {

// A TorchScript file has constants.pkl beside data.pkl. This check must come before
// ZipArchive::open(), which would refuse the compressed code in it with a less helpful
// error.
Result<void> refuse_script(const Source& source) {
  for (const std::string& name : HOLDFAST_TRY(list_zip(source))) {
    if (!name.ends_with("/constants.pkl")) continue;
    return unsupported(
        "{}: is a TorchScript program (torch.jit.save); expected a file of torch.save",
        source.name());
  }
  return {};
}

Result<OpenedArchive> open_archive(const std::shared_ptr<const Source>& source) {
  HOLDFAST_TRY(refuse_script(*source));
  const ZipArchive archive = HOLDFAST_TRY(ZipArchive::open(source, kZipOptions));
  const std::string folder = HOLDFAST_TRY(find_folder(archive));
  HOLDFAST_TRY(check_byte_order_and_version(archive, folder));
  const ZipEntry& entry = *archive.find(folder + std::string(kPickleName));
  const Bytes bytes = HOLDFAST_TRY(archive.read(entry, kMaxPickleBytes));
  const std::string where = fmt::format("{}: {}", source->name(), entry.name);
  const Pickle pickle =
      HOLDFAST_TRY(read_pickle(bytes, {.where = where, .allow_global = may_occur}));
  OpenedArchive opened{.entries = archive.entries()};
  opened.tree = HOLDFAST_TRY(read_tree(pickle, where, bytes.size()));
  const auto find = [&](const std::string& key) -> std::optional<StorageRecord> {
    const ZipEntry* record = archive.find(folder + "/data/" + key);
    if (record == nullptr) return std::nullopt;
    return StorageRecord{record->name, record->offset, record->size};
  };
  opened.views =
      HOLDFAST_TRY(place_views(source->name(), find, std::move(opened.tree.views)));
  return opened;
}

}  // namespace torch_zip

bool is_torch_archive(std::span<const std::string> names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    const size_t slash = name.find('/');
    return slash != name.npos && std::string_view(name).substr(slash) == kPickleName;
  });
}

Result<Contents> open_torch(std::shared_ptr<const Source> source) {
  if (HOLDFAST_TRY(torch_zip::is_legacy(*source))) {
    return torch_zip::open_legacy(std::move(source));
  }
  OpenedArchive opened = HOLDFAST_TRY(torch_zip::open_archive(source));
  const auto checked = make_zip_checked_source(std::move(source), opened.entries);
  return torch_zip::contents_of_views(checked, checked, std::move(opened.views),
                                      std::move(opened.tree));
}

}  // namespace holdfast

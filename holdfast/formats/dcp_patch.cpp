// Verifies the folders of DCP and plans patches of them.
#include <algorithm>
#include <set>

#include "holdfast/base/json_text.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/formats/dcp.h"
#include "holdfast/formats/dcp_internal.h"
#include "holdfast/formats/torch_zip_internal.h"
#include "holdfast/formats/zip_patch.h"
#include "holdfast/formats/zip_verify.h"

namespace holdfast {
namespace dcp {
namespace {

// An error that says that something is damaged, and not that it cannot be read now.
bool is_damage(const Error& error) {
  return error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported;
}

class FolderVerifier {
 public:
  // `names` leads from entries to tensors. It is empty if the folder cannot be opened.
  FolderVerifier(Env& env, const Path& folder, const Metadata& metadata,
                 const std::unordered_map<std::string, std::string>& names,
                 const Progress& progress)
      : metadata_(metadata), names_(names), progress_(progress), files_(env, folder) {
    const Item* before = nullptr;
    for (const NamedItem& item : metadata.items) {
      if (before == nullptr || *before != item.item) total_ += item.item.length;
      before = &item.item;
    }
    report_.checked = true;
  }

  Result<FormatReport> verify() {
    const std::vector<NamedItem>& items = metadata_.items;
    for (size_t first = 0, last = 0; first < items.size(); first = last) {
      while (last < items.size() && items[last].item == items[first].item) ++last;
      HOLDFAST_TRY(check(std::span(items).subspan(first, last - first)));
    }
    return std::move(report_);
  }

 private:
  // Checks one item, which several entries may have.
  Result<void> check(std::span<const NamedItem> same) {
    const NamedItem& item = same.front();
    if (item.transformed) {
      report_.checked = false;
      return {};
    }
    const Result<FormatReport> found = verify_item(item);
    report_.bytes_read += item.item.length;
    if (!found.ok() && !is_damage(found.error())) return found.error();
    if (!found.ok()) {
      add({.offset = item.item.offset,
           .bytes = item.item.length,
           .what = found.error().message()},
          same);
      return {};
    }
    report_.checked = report_.checked && found->checked;
    for (Damage damage : found->damage) {
      damage.offset += item.item.offset;
      add(std::move(damage), same);
    }
    return {};
  }

  Result<FormatReport> verify_item(const NamedItem& item) {
    const auto file = HOLDFAST_TRY(files_.open(item.item.file));
    const auto source = HOLDFAST_TRY(open_item(file, item));
    const ZipArchive archive =
        HOLDFAST_TRY(ZipArchive::open(source, torch_zip::kZipOptions));
    const int64_t before = report_.bytes_read;
    return verify_zip(archive, nullptr, [&](int64_t done, int64_t) {
      if (progress_) progress_(before + done, total_);
    });
  }

  void add(Damage damage, std::span<const NamedItem> same) {
    std::set<std::string> tensors;
    for (const NamedItem& item : same) {
      const auto name = names_.find(item.entry);
      tensors.insert(name == names_.end() ? item.entry : name->second);
    }
    damage.file = same.front().item.file;
    damage.tensors.assign(tensors.begin(), tensors.end());
    report_.damage.push_back(std::move(damage));
  }

  const Metadata& metadata_;
  const std::unordered_map<std::string, std::string>& names_;
  const Progress& progress_;
  Files files_;
  int64_t total_ = 0;
  FormatReport report_;
};

FormatReport damaged_metadata(const Error& error) {
  FormatReport report;
  report.damage.push_back({.file = kMetadataFile, .what = error.message()});
  return report;
}

// Plans a patch: changes bytes in the files, and the CRCs of the items that have them.
class FolderPatcher {
 public:
  FolderPatcher(Env& env, const Path& folder, const Metadata& metadata,
                const Contents& contents)
      : files_(env, folder), contents_(contents), plan_(env, folder / "") {
    for (const NamedItem& item : metadata.items) {
      items_[(folder / item.item.file).native()].push_back(&item);
    }
  }

  Result<void> flip(const PlacedFlip& at) {
    const std::string& file = contents_.sources[at.holder]->name();
    OpenItem& item = *HOLDFAST_TRY(find_item(file, at.offset));
    item.crcs.add(at.offset, at.mask);
    return item.edit.flip(at.offset, at.mask);
  }

  Result<void> write_crcs() const {
    for (const auto& [item, open] : open_) HOLDFAST_TRY(open->crcs.write());
    return {};
  }

  Patch finish() && { return std::move(plan_).finish(); }

 private:
  struct OpenItem {
    OpenItem(ZipArchive of, FileEdit& file, int64_t begin)
        : archive(std::move(of)), edit(file), crcs(archive, edit, begin) {}

    const ZipArchive archive;
    FileEdit& edit;
    ZipCrcEdit crcs;
  };

  // The item that has this byte of a file.
  Result<OpenItem*> find_item(const std::string& file, int64_t offset) {
    const auto& items = items_.at(file);
    const auto next = std::ranges::upper_bound(
        items, offset, {}, [](const NamedItem* item) { return item->item.offset; });
    HOLDFAST_CHECK(next != items.begin(), "no item has byte {}", offset);
    const NamedItem& item = **std::prev(next);
    std::unique_ptr<OpenItem>& open = open_[&item];
    if (open != nullptr) return open.get();
    FileEdit* edit = HOLDFAST_TRY(plan_.edit(file));
    auto source =
        HOLDFAST_TRY(open_item(HOLDFAST_TRY(files_.open(item.item.file)), item));
    open = std::make_unique<OpenItem>(
        HOLDFAST_TRY(ZipArchive::open(std::move(source), torch_zip::kZipOptions)),
        *edit, item.item.offset);
    return open.get();
  }

  Files files_;
  const Contents& contents_;
  PatchPlan plan_;
  // By the path of the file, in order of offset.
  std::unordered_map<std::string, std::vector<const NamedItem*>> items_;
  std::map<const NamedItem*, std::unique_ptr<OpenItem>> open_;
};

}  // namespace
}  // namespace dcp

Result<FormatReport> verify_dcp(Env& env, const Path& folder,
                                const Progress& progress) {
  const Result<dcp::Metadata> metadata = dcp::read_metadata(env, folder);
  if (!metadata.ok()) {
    if (metadata.error().code() != ErrorCode::kCorrupt) return metadata.error();
    return dcp::damaged_metadata(metadata.error());
  }
  const Result<dcp::OpenedFolder> opened = dcp::open_folder(env, folder, *metadata);
  if (!opened.ok() && !dcp::is_damage(opened.error())) return opened.error();
  const std::unordered_map<std::string, std::string> none;
  FormatReport report =
      HOLDFAST_TRY(dcp::FolderVerifier(env, folder, *metadata,
                                       opened.ok() ? opened->names : none, progress)
                       .verify());
  if (opened.ok() || !report.damage.empty()) return report;
  // The checksums are right, but the metadata contradicts the items.
  if (opened.error().code() != ErrorCode::kCorrupt) return opened.error();
  report.damage = dcp::damaged_metadata(opened.error()).damage;
  return report;
}

Result<Patch> plan_dcp_patch(Env& env, const Path& folder, std::span<const Flip> flips,
                             Checksums checksums) {
  const dcp::Metadata metadata = HOLDFAST_TRY(dcp::read_metadata(env, folder));
  const dcp::OpenedFolder opened =
      HOLDFAST_TRY(dcp::open_folder(env, folder, metadata));
  dcp::FolderPatcher patcher(env, folder, metadata, opened.contents);
  HOLDFAST_TRY(place_flips(opened.contents, flips,
                           [&](const PlacedFlip& at) { return patcher.flip(at); }));
  if (checksums == Checksums::kConsistent) HOLDFAST_TRY(patcher.write_crcs());
  return std::move(patcher).finish();
}

}  // namespace holdfast

// Verifies torch's zip files and plans patches of them.
#include "holdfast/contents/file_edit.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/formats/torch_zip_internal.h"
#include "holdfast/formats/zip_patch.h"
#include "holdfast/formats/zip_verify.h"

namespace holdfast {

Result<FormatReport> verify_torch(std::shared_ptr<const Source> source,
                                  const Progress& progress) {
  // A file from before torch 1.6 has no checksums.
  if (HOLDFAST_TRY(torch_zip::is_legacy(*source))) {
    HOLDFAST_TRY(open_torch(std::move(source)));
    return FormatReport{};
  }
  HOLDFAST_TRY(torch_zip::refuse_script(*source));
  const ZipArchive archive =
      HOLDFAST_TRY(ZipArchive::open(source, torch_zip::kZipOptions));
  const Result<Contents> contents = open_torch(std::move(source));
  return verify_zip(archive, contents.ok() ? &*contents : nullptr, progress);
}

Result<Patch> plan_torch_patch(Env& env, const Path& path, std::span<const Flip> flips,
                               Checksums checksums) {
  const std::shared_ptr<const Source> source =
      HOLDFAST_TRY(FileSource::open(env, path));
  const Contents contents = HOLDFAST_TRY(open_torch(source));
  PatchPlan plan(env, path);
  HOLDFAST_TRY(torch_zip::edit_torch(*HOLDFAST_TRY(plan.edit(path)), source, contents,
                                     flips, checksums));
  return std::move(plan).finish();
}

namespace torch_zip {

Result<void> edit_torch(FileEdit& edit, const std::shared_ptr<const Source>& source,
                        const Contents& contents, std::span<const Flip> flips,
                        Checksums checksums) {
  const auto flip = [&](const PlacedFlip& at) -> Result<void> {
    if (contents.sources[at.holder] == contents.sources[0]) {
      return edit.flip(at.offset, at.mask);
    }
    return unsupported(
        "{}: the file does not have each element of this expanded or conjugated view; "
        "expected another tensor",
        at.flip->tensor);
  };
  if (HOLDFAST_TRY(is_legacy(*source))) return place_flips(contents, flips, flip);
  const ZipArchive archive = HOLDFAST_TRY(ZipArchive::open(source, kZipOptions));
  ZipCrcEdit crcs(archive, edit);
  HOLDFAST_TRY(place_flips(contents, flips, [&](const PlacedFlip& at) {
    crcs.add(at.offset, at.mask);
    return flip(at);
  }));
  return checksums == Checksums::kConsistent ? crcs.write() : Result<void>();
}

}  // namespace torch_zip

}  // namespace holdfast

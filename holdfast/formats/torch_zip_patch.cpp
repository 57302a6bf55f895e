// Verifies torch's zip files and plans patches of them.
#include "holdfast/contents/file_edit.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/formats/torch_zip_internal.h"
#include "holdfast/formats/zip_patch.h"
#include "holdfast/formats/zip_verify.h"

namespace holdfast {

Result<FormatReport> verify_torch(std::shared_ptr<const Source> source,
                                  const Progress& progress) {
  HOLDFAST_TRY(torch_zip::refuse_legacy(*source));
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
  const ZipArchive archive =
      HOLDFAST_TRY(ZipArchive::open(source, torch_zip::kZipOptions));
  PatchPlan plan(env, path);
  FileEdit& edit = *HOLDFAST_TRY(plan.edit(path));
  ZipCrcEdit crcs(archive, edit);
  HOLDFAST_TRY(place_flips(contents, flips, [&](const PlacedFlip& at) {
    crcs.add(at.offset, at.mask);
    return edit.flip(at.offset, at.mask);
  }));
  if (checksums == Checksums::kConsistent) HOLDFAST_TRY(crcs.write());
  return std::move(plan).finish();
}

}  // namespace holdfast

#include "holdfast/env/unsynced_env.h"

#include "holdfast/env/file_wrapper.h"

namespace holdfast {
namespace {

class UnsyncedFile : public FileWrapper {
 public:
  using FileWrapper::FileWrapper;

  Result<void> sync() override { return {}; }
  Result<void> sync_data() override { return {}; }
};

}  // namespace

Result<std::unique_ptr<File>> UnsyncedEnv::open(const Path& path, OpenOptions options) {
  return std::unique_ptr<File>(
      std::make_unique<UnsyncedFile>(HOLDFAST_TRY(inner_.open(path, options))));
}

Result<void> UnsyncedEnv::sync_folder(const Path& folder) {
  if (HOLDFAST_TRY(inner_.info(folder)).folder) return {};
  return invalid("{}: is a file; expected a folder", folder.native());
}

}  // namespace holdfast

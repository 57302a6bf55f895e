// Renaming that replaces nothing, on the machine's file systems. Internal to env.
#pragma once

#include "holdfast/env/file.h"

namespace holdfast {

// Does Env::rename_new: by renameat2() where the file system knows it, else by
// posix_rename_new_plainly().
Result<void> posix_rename_new(const Path& from, const Path& to);

// What posix_rename_new does where renameat2() cannot. A file gets its new name by a
// hard link, which fails if the name is taken, and then loses the old name. Where there
// are no hard links, the file replaces an empty file that was created under the new
// name. A folder is renamed after a check that the name is free.
Result<void> posix_rename_new_plainly(const Path& from, const Path& to);

}  // namespace holdfast

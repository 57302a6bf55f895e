// Renaming without replacing on the machine. Internal to base.
#pragma once

#include "holdfast/env/file.h"

namespace holdfast {

// Env::rename_new, by the system's call where the file system knows it, else plainly.
Result<void> posix_rename_new(const Path& from, const Path& to);

// What posix_rename_new does where the system cannot: a file gets its new name by a hard
// link (which fails if it is taken) and loses the old one; where there are no hard links, it
// replaces an empty file that was created under the new name. A folder is renamed after a
// look whether the name is free.
Result<void> posix_rename_new_plainly(const Path& from, const Path& to);

}  // namespace holdfast

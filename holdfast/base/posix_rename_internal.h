// Renaming without replacing on the machine. Internal to base.
#pragma once

#include "holdfast/base/file.h"

namespace holdfast {

// Env::rename_new, by the system's call where the file system knows it, else plainly.
Result<void> posix_rename_new(const Path& from, const Path& to);

// What posix_rename_new does where the system cannot: a file gets its new name (which
// fails if it is taken) and loses the old one; a folder is renamed after a look whether
// the name is free.
Result<void> posix_rename_new_plainly(const Path& from, const Path& to);

}  // namespace holdfast

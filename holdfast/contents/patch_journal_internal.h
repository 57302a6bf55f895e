// The bytes of a patch's journal, and the files that a patch changes. For patch.cpp.
#pragma once

#include <string>

#include "holdfast/contents/patch.h"

namespace holdfast {

// The journal has the whole patch and ends with a digest. Names of files in it are
// relative to the journal's folder, so that the folder can be moved.
Bytes encode_journal(const Patch& patch);
// Reads what encode_journal() wrote. `journal` is the path of the journal. Fails with
// kCorrupt if the bytes are damaged, or if they name files elsewhere.
Result<Patch> decode_journal(ByteView bytes, const Path& journal);

// The name of a file of the patch in its journal. Fails with kInvalid if the file is not
// in the journal's folder or below it.
Result<std::string> name_in_journal(const Patch& patch, const Path& file);

}  // namespace holdfast

// holdfast.json: what makes a folder a run directory.
#pragma once

#include <cstdint>
#include <string>

#include "holdfast/base/bytes.h"

namespace holdfast {

// Of the layout of the run directory as a whole.
inline constexpr int64_t kRunVersion = 2;

struct RunFile {
  std::string id{};
  bool checked = false;  // against its digest, which version 1 does not have
};

Bytes encode_run_file(const RunFile& file);
// kCorrupt, naming `where`; kUnsupported for a newer version.
Result<RunFile> decode_run_file(ByteView json, const std::string& where);

}  // namespace holdfast

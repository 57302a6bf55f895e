// holdfast.json, the file that makes a folder a run directory.
#pragma once

#include <cstdint>
#include <string>

#include "holdfast/base/bytes.h"

namespace holdfast {

// The version of the layout of a whole run directory.
inline constexpr int64_t kRunVersion = 2;

struct RunFile {
  std::string id{};
  // Whether the file had a digest and it was right. Files of version 1 have no digest.
  bool checked = false;
};

Bytes encode_run_file(const RunFile& file);
// Fails with kCorrupt, naming `where`, and with kUnsupported for a newer version.
Result<RunFile> decode_run_file(ByteView json, const std::string& where);

}  // namespace holdfast

// Asks Python to describe a user's model.
#pragma once

#include <string>

#include "holdfast/base/result.h"

namespace holdfast {

// Starts `python3 -m holdfast.module_layout MODULE:NAME` and returns what it prints: a
// model as JSON (models/model_json.h). The Python is the one that HOLDFAST_PYTHON names,
// or python3 in the folder of this program, or python3 on the PATH. Fails with kInvalid
// if the function cannot be called, and with kUnsupported if Python, torch or Holdfast's
// package is missing.
Result<std::string> describe_module(const std::string& module);

}  // namespace holdfast

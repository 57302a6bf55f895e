// What the command line leaves to Python: describing a user's model, and verbs that start
// trainings.
#pragma once

#include <string>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

// Starts `python3 -m holdfast.module_layout MODULE:NAME` and returns what it prints: a
// model as JSON (models/model_json.h). The Python is the one that HOLDFAST_PYTHON names,
// or python3 beside the program (beside the link by which it was called, then beside the
// file), or python3 on the PATH. Fails with kInvalid
// if the function cannot be called, and with kUnsupported if Python, torch or Holdfast's
// package is missing.
Result<std::string> describe_module(const std::string& module);

// Becomes `python3 -m holdfast.VERB ARGUMENTS`, with the same Python. Returns only if
// that is not possible.
Error become_python_verb(const std::string& verb,
                         const std::vector<std::string>& arguments);

}  // namespace holdfast

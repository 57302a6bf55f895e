#include "holdfast/formats/foreign_folders.h"

#include <algorithm>

namespace holdfast {
namespace {

// DeepSpeed writes global_step100/ with a file *_optim_states.pt for each rank, and beside
// it a script that joins them.
bool is_zero_checkpoint(std::span<const std::string> names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return name == "zero_to_fp32.py" || name.ends_with("_optim_states.pt");
  });
}

// Orbax writes a folder for each item, or all arrays into one OCDBT database.
bool is_orbax(std::span<const std::string> names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return name == "_CHECKPOINT_METADATA" || name == "manifest.ocdbt" ||
           name == "_METADATA";
  });
}

}  // namespace

std::optional<std::string_view> describe_foreign_folder(
    std::span<const std::string> names) {
  if (is_zero_checkpoint(names)) {
    return "is a ZeRO checkpoint of DeepSpeed, whose ranks cut each tensor; expected the "
           "model that its script zero_to_fp32.py joins from it";
  }
  if (is_orbax(names)) {
    return "is a checkpoint of Orbax; expected the arrays that orbax.checkpoint restores "
           "from it, saved by safetensors or numpy";
  }
  return std::nullopt;
}

}  // namespace holdfast

// Chooses the tensors of a checkpoint that are exported, and their names.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/contents/selection.h"
#include "holdfast/inspect/export.h"
#include "holdfast/inspect/training_objects.h"

namespace holdfast {

// What is written: tensors, and objects beside them. The objects may name the tensors.
struct Choice {
  std::vector<Pick> picks{};
  Object objects{};
  std::vector<std::string> notes{};
};

// The new name of a tensor; nullopt leaves the tensor out.
using Rename = std::function<std::optional<std::string>(const std::string& name)>;
// Renames all tensors, under each of their names.
void rename_picks(Choice& choice, const Rename& rename);

// All tensors, as they are called.
Choice choose_all(const Collection& tensors);

// The state_dict() of the model, without the words that wrappers add. Entries that are
// no tensors become objects.
Result<Choice> choose_weights(const Collection& tensors,
                              const TrainingObjects& training);

// The same with the values of an average (EMA). Its tensors are found by the names of
// the model's; what the average lacks is taken from the model. Fails with kNotFound if
// there is no average, and with kUnsupported if there are several.
Result<Choice> choose_average(const Collection& tensors,
                              const TrainingObjects& training);

// The state_dict() of the optimizer; of several, a dict of them by name.
Result<Choice> choose_optimizer(const Collection& tensors,
                                const TrainingObjects& training);

// Leaves the tensors whose names match one of the patterns, and removes `strip` from the
// beginning of names. Objects are kept only if everything is selected. Fails with
// kNotFound if nothing matches, and with kInvalid if two names become one.
Result<void> select_names(Choice& choice, std::string_view patterns,
                          std::string_view strip);

// The name of the PEFT adapter to export: `wanted`, or else the one that was active when
// the training was saved, or else the only one. Fails with kNotFound if there is no such
// adapter, and with kInvalid if there are several and none was active alone.
Result<std::string> choose_adapter(Choice& choice,
                                   const std::optional<TrainingObjects>& training,
                                   std::string_view wanted);

// Leaves the tensors of a PEFT adapter, called as in its own files: without the
// adapter's name. `config` is adapter_config.json.
Result<void> keep_adapter(Choice& choice, std::string_view adapter,
                          std::string_view config);

// Whether the text matches a pattern, in which * stands for any text and ? for a byte.
bool matches_pattern(std::string_view text, std::string_view pattern);

}  // namespace holdfast

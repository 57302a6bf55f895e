// Finds the adapters of PEFT in a checkpoint, and the names that PEFT's own files have.
#include <algorithm>
#include <array>

#include "holdfast/base/json_place.h"
#include "holdfast/inspect/export_names.h"

namespace holdfast {
namespace {

// Whether a part of a tensor's name is followed by the name of an adapter: PEFT keeps
// what belongs to adapters in dicts with such names, and the parameters of each of its
// methods begin with that method's word.
bool holds_adapters(std::string_view part) {
  constexpr std::array<std::string_view, 12> kMethods{
      "lora_", "ia3_",       "hada_", "lokr_",   "vera_",     "oft_",
      "boft_", "fourierft_", "hra_",  "vblora_", "randlora_", "bone_"};
  const auto begins = [&](std::string_view word) { return part.starts_with(word); };
  return part == "modules_to_save" || part == "prompt_encoder" ||
         std::ranges::any_of(kMethods, begins);
}

std::set<std::string, std::less<>> adapters_in(const Choice& choice) {
  std::set<std::string, std::less<>> found;
  for (const Pick& pick : choice.picks) {
    std::string_view rest = pick.name;
    for (size_t dot = rest.find('.'); dot != rest.npos; dot = rest.find('.')) {
      const bool next = holds_adapters(rest.substr(0, dot));
      rest.remove_prefix(dot + 1);
      if (!next) continue;
      found.emplace(rest.substr(0, rest.find('.')));
      break;
    }
  }
  return found;
}

// Where ".adapter." begins in a dotted name, npos if it is not there. With `known`, only
// behind a part that holds adapters: a module of the model may have the adapter's name.
size_t find_adapter(std::string_view dotted, const std::string& adapter, bool known) {
  const std::string wanted = "." + adapter + ".";
  for (size_t at = dotted.find(wanted); at != dotted.npos;
       at = dotted.find(wanted, at + 1)) {
    const std::string_view head = dotted.substr(0, at);
    if (!known || holds_adapters(head.substr(head.rfind('.') + 1))) return at;
  }
  return dotted.npos;
}

// The name of a tensor in the files of a PEFT adapter; nullopt if it is not part of it.
std::optional<std::string> adapter_name(const std::string& name,
                                        const std::string& adapter, bool known) {
  constexpr std::string_view kWhole = "modules_to_save", kMagnitude = ".weight";
  const std::string dotted = "." + name + ".";
  const size_t at = find_adapter(dotted, adapter, known);
  if (at == dotted.npos || at == 0) return std::nullopt;
  std::string head = dotted.substr(1, at - 1);
  std::string tail = dotted.substr(at + adapter.size() + 1);
  tail.pop_back();  // the dot that was added
  if (head.ends_with(kWhole)) {
    head.resize(std::max(head.size() - kWhole.size(), size_t{1}) - 1);
  }
  if (head.ends_with("lora_magnitude_vector") && tail == kMagnitude) tail.clear();
  return head + tail;
}

// The adapter that alone was active when the training was saved; "" if that is unknown.
std::string active_adapter(const std::optional<TrainingObjects>& training) {
  const Object* active = training ? find_key(training->all, "active adapters") : nullptr;
  const auto* list = active == nullptr ? nullptr : active->as<Object::List>();
  if (list == nullptr || list->items.size() != 1) return "";
  const auto* name = list->items.front().as<std::string>();
  return name == nullptr ? "" : *name;
}

// Whether the adapter's configuration says that biases belong to it, too.
Result<std::string> bias_of(std::string_view config) {
  const auto json = HOLDFAST_TRY(JsonDocument::parse(config, "adapter_config.json"));
  if (!json.root().is_object()) {
    return invalid("adapter_config.json: expected an object");
  }
  return json.root().member_as<std::string>("bias").value_or("none");
}

}  // namespace

Result<std::string> choose_adapter(Choice& choice,
                                   const std::optional<TrainingObjects>& training,
                                   std::string_view wanted) {
  if (!wanted.empty()) return std::string(wanted);
  const auto there = adapters_in(choice);
  const std::string all = fmt::format("{}", fmt::join(there, ", "));
  const std::string active = active_adapter(training);
  if (there.size() > 1 && there.contains(active)) {
    choice.notes.push_back(
        fmt::format("{} is the adapter that was active, of: {}", active, all));
    return active;
  }
  if (there.size() > 1) {
    return invalid("there are several adapters: {}; expected --adapter with one of them",
                   all);
  }
  return there.empty() ? "default" : *there.begin();
}

Result<void> keep_adapter(Choice& choice, std::string_view adapter,
                          std::string_view config) {
  const std::string bias = HOLDFAST_TRY(bias_of(config));
  const std::string name(adapter);
  const auto there = adapters_in(choice);
  std::set<std::string, std::less<>> with_adapter;  // modules that the adapter changes
  for (const Pick& pick : choice.picks) {
    const size_t at = pick.name.find(".lora_");
    if (at != pick.name.npos) with_adapter.insert(pick.name.substr(0, at));
  }
  rename_picks(choice, [&](const std::string& one) -> std::optional<std::string> {
    if (auto renamed = adapter_name(one, name, !there.empty())) return renamed;
    const size_t dot = one.rfind('.');
    if (dot == one.npos || one.substr(dot) != ".bias") return std::nullopt;
    // The module itself is called base_layer inside one that the adapter changes.
    const std::string module = one.substr(0, dot);
    const std::string outer = module.substr(0, module.rfind(".base_layer"));
    const bool changed = with_adapter.contains(outer);
    const bool kept = bias == "all" || (bias == "lora_only" && changed);
    return kept ? std::optional(one) : std::nullopt;
  });
  choice.objects = Object();
  if (choice.picks.empty()) {
    return not_found("there is no adapter called {}; expected one of: {}", adapter,
                     there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", ")));
  }
  return {};
}

}  // namespace holdfast

#include "holdfast/inspect/export.h"

#include <array>

#include "holdfast/base/checked.h"
#include "holdfast/base/json_place.h"
#include "holdfast/base/json_writer.h"
#include "holdfast/base/number_text.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/attempt_path.h"
#include "holdfast/inspect/export_names.h"
#include "holdfast/models/hf_config.h"
#include "holdfast/models/rules.h"
#include "holdfast/state/float_convert.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

constexpr std::string_view kHf = "hf", kPeft = "peft", kTorch = "torch";

// Limits the size of a file that is copied beside the weights. Tokenizers have some MB.
constexpr int64_t kMaxCopiedBytes = int64_t{256} << 20;

// What is copied from the folder of a model, if it is there.
constexpr std::array<std::string_view, 12> kModelFiles{"generation_config.json",
                                                       "tokenizer.json",
                                                       "tokenizer_config.json",
                                                       "tokenizer.model",
                                                       "vocab.json",
                                                       "vocab.txt",
                                                       "merges.txt",
                                                       "added_tokens.json",
                                                       "special_tokens_map.json",
                                                       "preprocessor_config.json",
                                                       "processor_config.json",
                                                       "chat_template.jinja"};

// What is written, before any source is opened.
struct Target {
  Path path;
  std::string format;
  std::map<std::string, std::string> files{};  // copied beside the weights, by name

  bool folder() const { return format == kHf || format == kPeft; }
  std::string_view config_name() const {
    return format == kPeft ? "adapter_config.json" : "config.json";
  }
};

Result<std::string> choose_format(const Path& to, const ExportOptions& options) {
  if (options.format == kHf || options.format == kPeft) return options.format;
  const Result<const Format*> by_name =
      options.format.empty() ? format_for(to) : find_format(options.format);
  if (by_name.ok() && !(*by_name)->folder) return std::string((*by_name)->name);
  const bool folder =
      by_name.ok() || (options.format.empty() && !options.config.empty());
  if (folder) return std::string(kHf);
  return invalid(
      "{}: the name does not tell the format; expected .safetensors, .pt or a folder "
      "with a / at its end, or one of the formats safetensors, torch, hf, peft",
      to.native());
}

Result<void> check_options(const Target& target, const ExportOptions& options) {
  const std::string& to = target.path.native();
  if (options.optimizer && target.format != kTorch) {
    return invalid("{}: an optimizer has numbers beside tensors; expected a .pt file",
                   to);
  }
  if (options.optimizer && (options.ema || options.dtype || !options.select.empty() ||
                            !options.strip.empty())) {
    return invalid("{}: --optimizer; expected no --ema, --dtype, --select or --strip",
                   to);
  }
  if (options.dtype && !is_convertible(*options.dtype)) {
    return invalid("{}: --dtype {}; expected F16, BF16, F32 or F64", to,
                   name_of(*options.dtype));
  }
  if (target.folder() && options.config.empty()) {
    return invalid("{}: a folder for {} needs the model's {}; expected --config PATH",
                   to, target.format, target.config_name());
  }
  if (!target.folder() && !options.config.empty()) {
    return invalid("{}: --config is for folders; expected --format hf or peft", to);
  }
  return {};
}

// The text of config.json with the dtype that the weights have.
Result<std::string> with_dtype(const std::string& text, std::optional<Dtype> dtype,
                               const std::string& where) {
  const auto config = HOLDFAST_TRY(JsonDocument::parse(text, where));
  if (!dtype) return text;
  if (!config.root().is_object()) return invalid("{}: expected an object", where);
  const char* name = "float32";
  if (*dtype == Dtype::kF16) name = "float16";
  if (*dtype == Dtype::kBf16) name = "bfloat16";
  if (*dtype == Dtype::kF64) name = "float64";
  JsonWriter out({.indent = 2});
  copy_json(out, text, {config.root().find("dtype") ? "dtype" : "torch_dtype", name});
  return std::move(out).take() + "\n";
}

Result<void> read_files(Env& env, const ExportOptions& options, Target& target) {
  if (!target.folder()) return {};
  const bool folder = HOLDFAST_TRY(env.info(options.config)).folder;
  const Path config = folder ? options.config / target.config_name() : options.config;
  const std::string text = HOLDFAST_TRY(env.read_text(config, kMaxCopiedBytes));
  const auto dtype = target.format == kHf ? options.dtype : std::nullopt;
  target.files[std::string(target.config_name())] =
      HOLDFAST_TRY(with_dtype(text, dtype, config.native()));
  if (!folder || target.format != kHf) return {};
  for (const std::string_view name : kModelFiles) {
    const Path file = options.config / name;
    if (!env.info(file).ok()) continue;
    target.files[std::string(name)] =
        HOLDFAST_TRY(env.read_text(file, kMaxCopiedBytes));
  }
  return {};
}

Result<Choice> choose(const Collection& tensors,
                      const std::optional<TrainingObjects>& training,
                      const ExportOptions& options) {
  if (training && options.optimizer) return choose_optimizer(tensors, *training);
  if (training && options.ema) return choose_average(tensors, *training);
  if (training) return choose_weights(tensors, *training);
  if (options.optimizer || options.ema) {
    return invalid(
        "no Checkpointer has made it, so it does not say what is the {}; expected "
        "--select and --strip",
        options.optimizer ? "optimizer" : "average");
  }
  return choose_all(tensors);
}

void convert_dtypes(Choice& choice, Dtype dtype) {
  for (Pick& pick : choice.picks) {
    if (is_convertible(pick.dtype)) pick.dtype = dtype;
  }
}

// Stores tensors with several names as the format or the caller wants it. Returns the
// metadata by which safetensors.torch.load_model() finds the names that are left out.
std::map<std::string, std::string> resolve_ties(Choice& choice, const Target& target,
                                                Ties ties) {
  std::map<std::string, std::string> metadata;
  if (ties == Ties::kByFormat && target.format == kTorch) return metadata;
  const bool once = ties == Ties::kOnce || (ties == Ties::kByFormat && target.folder());
  std::vector<Pick> more;
  for (Pick& pick : choice.picks) {
    for (const std::string& alias : pick.aliases) {
      if (!once) more.push_back({pick.tensor, alias, {}, pick.dtype});
      if (once && !target.folder()) metadata[alias] = pick.name;
    }
    pick.aliases.clear();
  }
  choice.picks.insert(choice.picks.end(), more.begin(), more.end());
  return metadata;
}

void rename_aliases(const RuleSet& rules, const Shape& shape, Pick& pick) {
  for (std::string& alias : pick.aliases) {
    const auto stored = file_tensors(rules, alias, shape);
    if (stored.size() == 1) alias = stored.front().name;
  }
}

// Gives the tensors of a model of transformers the names of save_pretrained(), which stores
// each expert by itself. A configuration of another model changes nothing.
Result<void> rename_for_files(Choice& choice, const Collection& tensors,
                              const std::string& config) {
  const auto json = HOLDFAST_TRY(JsonDocument::parse(config, "config.json"));
  const auto type = json.root().member_as<std::string>("model_type");
  const std::string set = type ? rules_of_type(*type) : "";
  if (set.empty()) return {};
  const RuleSet rules = HOLDFAST_TRY(find_rule_set(set));
  std::vector<Pick> picks;
  for (const Pick& pick : choice.picks) {
    const Tensor& tensor = tensors.tensor(pick.tensor);
    const auto stored = file_tensors(rules, pick.name, tensor.shape);
    if (stored.empty()) picks.push_back(pick);
    if (stored.empty()) rename_aliases(rules, tensor.shape, picks.back());
    for (const FileTensor& one : stored) {
      Pick& part = picks.emplace_back(pick);
      part.name = one.name;
      if (one.box != Box::whole(tensor.shape)) part.part = {one.box, one.shape};
    }
  }
  choice.picks = std::move(picks);
  return {};
}

// A file of safetensors has no place for values that are no tensors.
void drop_objects(Choice& choice) {
  const auto* dict = choice.objects.as<Object::Dict>();
  if (dict == nullptr) return;
  for (const auto& [key, value] : dict->items) {
    choice.notes.push_back(
        fmt::format("left out: {}, which is no tensor; a .pt file would have it",
                    *key.as<std::string>()));
  }
  choice.objects = Object();
}

Result<void> write_target(Env& env, const Target& target, const Contents& contents,
                          const ExportOptions& options) {
  const Path attempt = choose_attempt(env, target.path);
  if (!target.folder()) {
    const Format* format = HOLDFAST_TRY(find_format(target.format));
    return write_file(env, target.path, contents,
                      {.format = format, .attempt = attempt});
  }
  return write_new_folder(env, target.path, attempt, [&](const Path& folder) {
    return write_model_folder(
        env, folder, contents,
        {.stem = target.format == kPeft ? "adapter_model" : "model",
         .shard_bytes = target.format == kPeft ? INT64_MAX : options.shard_bytes,
         .files = target.files});
  });
}

Result<void> export_found(Env& env, const Found& from, const Target& target,
                          const ExportOptions& options, Written& done) {
  Contents opened = HOLDFAST_TRY(open_found(env, from));
  const auto training = HOLDFAST_TRY(read_training_objects(env, from, opened.objects));
  const std::string where = from.path.native();
  Choice choice =
      HOLDFAST_TRY(choose(opened.collection, training, options).within(where));
  if (!options.optimizer) {
    HOLDFAST_TRY(select_names(choice, options.select, options.strip).within(where));
  }
  if (target.format == kPeft) {
    const std::string& config = target.files.at(std::string(target.config_name()));
    const std::string adapter = HOLDFAST_TRY(
        choose_adapter(choice, training, options.adapter).within(where));
    HOLDFAST_TRY(keep_adapter(choice, adapter, config).within(where));
  }
  if (target.format == kHf) {
    const std::string& config = target.files.at(std::string(target.config_name()));
    HOLDFAST_TRY(rename_for_files(choice, opened.collection, config).within(where));
  }
  if (options.dtype) convert_dtypes(choice, *options.dtype);
  if (target.format != kTorch) drop_objects(choice);
  const auto metadata = resolve_ties(choice, target, options.ties);
  int64_t total = 0;
  for (const Pick& pick : choice.picks) {
    const Tensor& tensor = opened.collection.tensor(pick.tensor);
    const int64_t part = pick.part ? pick.part->second.elements() : 0;
    total += pick.part ? part * bytes_of(tensor.dtype) : tensor.bytes();
  }
  meter_sources(opened, options.reading, total);
  Contents made = HOLDFAST_TRY(select_tensors(
      std::make_shared<const Contents>(std::move(opened)), choice.picks));
  made.objects = std::move(choice.objects);
  made.metadata = metadata;
  done.tensors = std::ssize(made.collection.tensors());
  done.bytes = made.collection.bytes();
  done.notes = std::move(choice.notes);
  return write_target(env, target, made, options);
}

}  // namespace

Result<Ties> parse_ties(std::string_view text) {
  if (text.empty()) return Ties::kByFormat;
  if (text == "each") return Ties::kEach;
  if (text == "once") return Ties::kOnce;
  return invalid("{}; expected each or once", text);
}

Result<int64_t> parse_byte_count(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, int64_t>, 8> kUnits{
      {{"KiB", int64_t{1} << 10},
       {"MiB", int64_t{1} << 20},
       {"GiB", int64_t{1} << 30},
       {"KB", 1'000},
       {"MB", 1'000'000},
       {"GB", 1'000'000'000},
       {"B", 1},
       {"", 1}}};
  std::string_view unit = text;
  const int64_t number = take_number<int64_t>(unit).value_or(0);
  for (const auto& [name, bytes] : kUnits) {
    if (unit != name || number < 1) continue;
    if (const auto product = checked_mul(number, bytes)) return *product;
  }
  return invalid("{}; expected a size such as 5GB or 500MB", text);
}

Result<Written> export_state(Env& env, const Path& from, const Path& to,
                             const ExportOptions& options) {
  HOLDFAST_TRY(check_place(to));
  Target target{.path = to, .format = HOLDFAST_TRY(choose_format(to, options))};
  HOLDFAST_TRY(check_options(target, options));
  HOLDFAST_TRY(read_files(env, options, target));
  Written done{.to = to, .format = target.format};
  done.from = HOLDFAST_TRY(use_any(env, from, [&](const Found& found) {
    return export_found(env, found, target, options, done);
  }));
  return done;
}

}  // namespace holdfast

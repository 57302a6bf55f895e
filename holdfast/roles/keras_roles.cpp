// Roles by the groups, the attributes and the config of the files of Keras.
//
// .keras and .weights.h5: the variables of an object are PATH/vars/0, 1 and so on, first
// the trained ones. In a list of layers, an object is called by its class:
// layers/batch_normalization_2. The attribute "name" of PATH/vars is the layer's name.
//
// .h5: model_weights/LAYER/... and optimizer_weights/...; a file of weights alone has
// LAYER/... The attribute model_config of the root has the class of each layer.
#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_map>
#include <unordered_set>

#include "holdfast/base/json_place.h"
#include "holdfast/base/number_text.h"
#include "holdfast/roles/roles_internal.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

constexpr int kMostOuterObjects = 100;
constexpr size_t kLongestName = 4096;
constexpr std::string_view kBatchNormalization = "batchnormalization";
constexpr std::string_view kNormalization = "normalization";
constexpr std::string_view kSeedGenerator = "seedgenerator";
// Classes of Keras whose variables are all trained, in lower case without underscores.
constexpr std::array<std::string_view, 31> kTrainedLayers{
    "dense", "einsumdense", "embedding", "reversibleembedding", "prelu",
    "conv1d", "conv2d", "conv3d",
    "conv1dtranspose", "conv2dtranspose", "conv3dtranspose",
    "depthwiseconv1d", "depthwiseconv2d", "separableconv1d", "separableconv2d",
    "layernormalization", "groupnormalization", "rmsnormalization",
    "unitnormalization", "lstmcell", "grucell", "simplernncell", "lstm", "gru",
    "simplernn", "convlstm1d", "convlstm2d", "convlstm3d", "multiheadattention",
    "groupedqueryattention", "additiveattention"};
// Lists of layers, whose items Keras calls by their classes.
constexpr std::array<std::string_view, 3> kLists{
    "layers", "_layer_checkpoint_dependencies", "_operations"};

std::string_view last_part(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

std::string_view parent_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}

// "batchnormalization" for "BatchNormalization" and "batch_normalization_2".
std::string class_word(std::string_view name) {
  const size_t end = name.rfind('_');
  if (end != name.npos && number_in<size_t>(name.substr(end + 1))) name = name.substr(0, end);
  std::string word;
  for (const char c : name) {
    if (c != '_') word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return word;
}

bool is_trained_layer(std::string_view word) {
  return std::ranges::find(kTrainedLayers, word) != kTrainedLayers.end();
}

// The text of an attribute, or an empty one.
std::string text_of_attribute(const Object* object) {
  if (object == nullptr) return "";
  if (const auto* text = object->as<std::string>()) return *text;
  if (const auto* bytes = object->as<Bytes>()) return std::string(text_of(*bytes));
  return "";
}

// The attributes of an HDF5 file, by the paths of its objects.
class Attributes {
 public:
  explicit Attributes(const Object& objects) {
    const Object* all = find_key(objects, "attributes");
    const auto* dict = all == nullptr ? nullptr : all->as<Object::Dict>();
    if (dict == nullptr) return;
    for (const auto& [path, attributes] : dict->items) {
      if (const auto* text = path.as<std::string>()) paths_.emplace(*text, &attributes);
    }
  }

  bool has(const std::string& path) const { return paths_.contains(path); }
  const Object* find(const std::string& path, std::string_view name) const {
    const auto found = paths_.find(path);
    return found == paths_.end() ? nullptr : find_key(*found->second, name);
  }

 private:
  std::unordered_map<std::string, const Object*> paths_;
};

// The variables of one object of a .keras or .weights.h5 file.
class VariableGroups {
 public:
  VariableGroups(const Collection& collection, const Attributes& attributes, Roles& roles)
      : collection_(collection), attributes_(attributes), roles_(roles) {}

  void add() {
    for (TensorId t = 0; t < collection_.tensors().size(); ++t) {
      const std::string& name = collection_.tensor(t).name;
      const std::string_view group = parent_of(name);
      const auto number = number_in<size_t>(last_part(name));
      if (!number || last_part(group) != "vars") continue;
      groups_[std::string(parent_of(group))].push_back({*number, t});
    }
    for (auto& [path, variables] : groups_) {
      std::ranges::sort(variables);
      set_roles(path, variables);
    }
    set_layer_names();
  }

 private:
  using Variables = std::vector<std::pair<size_t, TensorId>>;

  std::string name_of_group(const std::string& path) const {
    const std::string vars = path.empty() ? "vars" : path + "/vars";
    return text_of_attribute(attributes_.find(vars, "name"));
  }

  // Whether an object is called by its class.
  static bool is_in_list(std::string_view path) {
    return std::ranges::find(kLists, last_part(parent_of(path))) != kLists.end();
  }

  static bool is_in_optimizer(std::string_view path) {
    return path == "optimizer" || path.starts_with("optimizer/") ||
           path.ends_with("/optimizer") || path.find("/optimizer/") != path.npos;
  }

  void set_roles(const std::string& path, const Variables& variables) {
    if (is_in_optimizer(path)) {
      for (const auto& [number, t] : variables) {
        set_known(roles_[t], role_in_optimizer(collection_.tensor(t)));
      }
      return;
    }
    const bool by_class = is_in_list(path);
    const std::string name = by_class ? std::string() : name_of_group(path);
    std::string word = class_word(name.empty() ? last_part(path) : name);
    // The parts of a layer are trained as the layer is, such as the cell of an LSTM.
    const std::string_view outer = parent_of(path);
    const bool by_outer = !by_class && is_in_list(outer) && word != kSeedGenerator &&
                          is_trained_layer(class_word(last_part(outer)));
    if (by_outer) word = class_word(last_part(outer));
    for (size_t i = 0; i < variables.size(); ++i) {
      const TensorId t = variables[i].second;
      const auto role = role_in_class(word, variables.size(), i, collection_.tensor(t));
      if (!role || roles_[t].origin != RoleOrigin::kGuessed) continue;
      roles_[t].role = *role;
      if (by_class || by_outer) roles_[t].origin = RoleOrigin::kFile;
    }
  }

  // The role of variable `i` of `count`. Nullopt if the class does not tell it.
  static std::optional<Role> role_in_class(const std::string& word, size_t count,
                                           size_t i, const Tensor& tensor) {
    if (word == kBatchNormalization) {
      // The mean and the variance; with renormalization three more.
      const size_t averages = count > 4 ? 5 : 2;
      return i + averages < count ? Role::kParameter : Role::kBuffer;
    }
    if (word == kNormalization) {
      return tensor.shape.elements() == 1 ? Role::kCounter : Role::kBuffer;
    }
    if (word == kSeedGenerator) return Role::kCounter;
    if (is_trained_layer(word)) return Role::kParameter;
    return std::nullopt;
  }

  // The names of an object and of those around it: "inner/dense". Empty if it has none.
  std::string full_name(const std::string& path) const {
    std::string name = name_of_group(path);
    if (name.empty() || path.size() > kLongestName) return "";
    std::string_view outer = parent_of(path);
    for (int level = 0; !outer.empty() && level < kMostOuterObjects; ++level) {
      const std::string around = name_of_group(std::string(outer));
      if (!around.empty()) name = around + "/" + name;
      if (name.size() > kLongestName) return "";
      outer = parent_of(outer);
    }
    return name;
  }

  // Layers are called as the program called them, unless two have the same name.
  void set_layer_names() {
    std::unordered_set<std::string> names;
    bool by_name = true;
    for (const auto& [path, variables] : groups_) {
      if (is_in_optimizer(path)) continue;
      const std::string name = full_name(path);
      by_name = by_name && !name.empty() && names.insert(name).second;
    }
    for (const auto& [path, variables] : groups_) {
      if (is_in_optimizer(path)) continue;
      const std::string layer = by_name ? full_name(path) : path;
      for (const auto& [number, t] : variables) roles_[t].layer = layer;
    }
  }

  const Collection& collection_;
  const Attributes& attributes_;
  Roles& roles_;
  std::map<std::string, Variables> groups_;
};

// Collects the classes of all layers of a config, also of models in models.
void collect_classes(const JsonPlace& json,
                     std::unordered_map<std::string, std::string>& classes) {
  if (json.is_list()) {
    for (size_t i = 0; i < *json.length(); ++i) collect_classes(json.item(i), classes);
  }
  if (!json.is_object()) return;
  const auto found = json.member_as<std::string>("class_name");
  const auto config = json.find("config");
  if (found && !found->empty() && config) {
    const std::string name = config->member_as<std::string>("name").value_or("");
    const std::string word = class_word(*found);
    // Two layers in different models may have one name.
    if (!name.empty() && classes.emplace(name, word).first->second != word) {
      classes[name].clear();
    }
  }
  (void)json.for_each([&](const std::string&, const JsonPlace& value) {
    collect_classes(value, classes);
    return Result<void>();
  });
}

// A whole model, or its weights, in the older format.
class LegacyFile {
 public:
  LegacyFile(const Collection& collection, const Attributes& attributes, Roles& roles)
      : collection_(collection), attributes_(attributes), roles_(roles) {}

  void add() {
    const bool whole = attributes_.has("model_weights");
    prefix_ = whole ? "model_weights/" : "";
    if (attributes_.find(whole ? "model_weights" : "/", "layer_names") == nullptr) return;
    read_config();
    for (TensorId t = 0; t < collection_.tensors().size(); ++t) add_weight(t);
    for (TensorId t = 0; t < collection_.tensors().size(); ++t) add_slot(t);
  }

 private:
  void read_config() {
    const std::string config = text_of_attribute(attributes_.find("/", "model_config"));
    const auto json = JsonDocument::parse(config, "model_config");
    if (json.ok()) collect_classes(json->root(), classes_);
  }

  void add_weight(TensorId t) {
    std::string_view name = collection_.tensor(t).name;
    if (!name.starts_with(prefix_) || name.starts_with(kOptimizer)) return;
    name.remove_prefix(prefix_.size());
    const std::string layer(name.substr(0, name.find('/')));
    roles_[t].layer = layer;
    if (layer.size() < name.size()) add_weight_name(t, name.substr(layer.size() + 1));
    const auto role = role_in_layer(t, class_of(t, layer));
    if (role) set_known(roles_[t], *role);
  }

  // The class of the layer that holds the weight: that of a layer in a model in the model,
  // or else that of the outer layer. Empty if it is not known.
  std::string class_of(TensorId t, const std::string& outer) const {
    for (const std::string& name :
         {std::string(last_part(roles_[t].layer)), outer}) {
      const auto found = classes_.find(name);
      if (found != classes_.end()) return found->second;
    }
    return "";
  }

  std::optional<Role> role_in_layer(TensorId t, const std::string& word) const {
    const Tensor& tensor = collection_.tensor(t);
    if (word == kBatchNormalization) {
      const std::string_view last = last_part(tensor.name);
      const bool average = last.starts_with("moving_") || last.starts_with("renorm_");
      return average ? Role::kBuffer : Role::kParameter;
    }
    if (word == kNormalization) {
      return tensor.shape.rank() == 0 ? Role::kCounter : Role::kBuffer;
    }
    if (is_trained_layer(word)) return Role::kParameter;
    return std::nullopt;
  }

  // The name that the program gave a weight, "sequential/dense/kernel", has the layer's.
  // Keras 2 puts it behind that of a slot: Adam/m/dense/kernel:0. Keras 3 writes it with
  // underscores: adam/sequential_dense_kernel_momentum.
  void add_weight_name(TensorId t, std::string_view weight) {
    if (!layer_of(weight).empty()) roles_[t].layer = layer_of(weight);
    std::string word(weight);
    weights_.emplace(word, t);
    std::ranges::replace(word, '/', '_');
    weights_.emplace(std::move(word), t);
  }

  void add_slot(TensorId t) {
    const Tensor& tensor = collection_.tensor(t);
    if (!tensor.name.starts_with(kOptimizer) || !attributes_.has("optimizer_weights")) {
      return;
    }
    set_known(roles_[t], role_in_optimizer(tensor));
    const auto weight = weight_of(tensor);
    if (!weight || roles_[t].role != Role::kSlot) return;
    roles_[t].of = collection_.tensor(*weight).name;
    roles_[t].layer = roles_[*weight].layer;
  }

  std::optional<TensorId> weight_of(const Tensor& slot) const {
    const auto known = [&](std::string_view word) -> std::optional<TensorId> {
      const auto found = weights_.find(std::string(word));
      if (found == weights_.end()) return std::nullopt;
      if (collection_.tensor(found->second).shape != slot.shape) return std::nullopt;
      return found->second;
    };
    std::string_view word = last_part(slot.name);
    for (size_t end = word.rfind('_'); end != word.npos; end = word.rfind('_')) {
      word = word.substr(0, end);
      if (const auto found = known(word)) return found;
    }
    word = slot.name;
    for (size_t at = word.find('/'); at != word.npos; at = word.find('/')) {
      word.remove_prefix(at + 1);
      if (const auto found = known(word)) return found;
    }
    return std::nullopt;
  }

  static constexpr std::string_view kOptimizer = "optimizer_weights/";

  const Collection& collection_;
  const Attributes& attributes_;
  Roles& roles_;
  std::string prefix_;
  std::unordered_map<std::string, std::string> classes_;  // by the layer's name
  std::unordered_map<std::string, TensorId> weights_;
};

}  // namespace

void add_keras_roles(const RoleEvidence& evidence, Roles& roles) {
  const Attributes attributes(evidence.objects);
  VariableGroups(evidence.collection, attributes, roles).add();
  LegacyFile(evidence.collection, attributes, roles).add();
}

}  // namespace holdfast

// Walks through the groups of a file and names what it finds.
#include <algorithm>
#include <unordered_map>

#include "holdfast/base/deflate.h"
#include "holdfast/base/json_text.h"
#include "holdfast/hdf5/links_internal.h"
#include "holdfast/hdf5/tree_internal.h"

namespace holdfast::hdf5 {
namespace {

// How deep groups may be nested, how many paths a file may have, and how often a soft
// link may lead to another one. More is taken for an attack.
constexpr int kMostGroups = 64;
constexpr int64_t kMostPaths = int64_t{1} << 20;
// A link takes 40 bytes or more, but links to groups multiply: 25 groups can have 2^24
// paths. A small file may have this many paths, and a large one a path for 8 bytes.
constexpr int64_t kFewPaths = int64_t{1} << 14;
constexpr int kMostSoftLinks = 16;
// A dataset may have this many bytes even if the file has hardly any.
constexpr int64_t kMostUnwritten = int64_t{1} << 30;

// Keras splits a list of names that does not fit into one attribute into name0, name1,
// and so on.
constexpr std::string_view kSplitAttributes[] = {"layer_names", "weight_names"};

Attribute* find_attribute(std::vector<Attribute>& attributes, std::string_view name) {
  const auto found = std::ranges::find(attributes, name, &Attribute::name);
  return found == attributes.end() ? nullptr : &*found;
}

void join_split_attribute(std::vector<Attribute>& attributes, std::string_view name) {
  if (find_attribute(attributes, name) != nullptr) return;
  Object::List all;
  size_t parts = 0;
  for (;; ++parts) {
    Attribute* part = find_attribute(attributes, fmt::format("{}{}", name, parts));
    const auto* list = part == nullptr ? nullptr : part->value.as<Object::List>();
    if (list == nullptr) break;
    std::ranges::copy(list->items, std::back_inserter(all.items));
  }
  for (size_t i = 0; i < parts; ++i) {
    std::erase_if(attributes, [&](const Attribute& attribute) {
      return attribute.name == fmt::format("{}{}", name, i);
    });
  }
  if (parts > 0) attributes.push_back({std::string(name), Object(std::move(all))});
}

// Keras stores bf16 as bytes without a meaning and says so in an attribute, which is then
// the dtype of the tensor and no object.
void apply_keras_dtype(Dataset& dataset, std::vector<Attribute>& attributes) {
  const Attribute* dtype = find_attribute(attributes, kDtypeAttribute);
  if (dtype == nullptr || dataset.type.kind != Datatype::Kind::kOpaque) return;
  if (dtype->value == Object(std::string(kBfloat16)) && dataset.type.bytes == 2) {
    dataset.type.kind = Datatype::Kind::kNumber;
    dataset.type.dtype = Dtype::kBf16;
    attributes.erase(attributes.begin() + (dtype - attributes.data()));
  }
}

class Walker {
 public:
  explicit Walker(const File& file)
      : file_(file),
        values_(file),
        most_paths_(std::min(kMostPaths, kFewPaths + file.source()->size() / 8)) {}

  Result<Tree> walk() && {
    HOLDFAST_TRY(visit(file_.root(), "", 0, false));
    tree_.simplified = std::move(values_.simplified());
    return std::move(tree_);
  }

 private:
  static constexpr size_t kNoTensor = SIZE_MAX;

  // An object that was read, by the address of its header.
  struct Known {
    bool group = false;
    bool open = false;          // a group whose links are being visited
    std::vector<Link> links{};  // by name
    size_t tensor = kNoTensor;
  };

  std::string place(const std::string& path) const {
    return fmt::format("{}: /{}", file_.name(), printable(path));
  }

  Result<void> visit(uint64_t address, const std::string& path, int depth, bool soft) {
    const std::string where = place(path);
    if (depth > kMostGroups) {
      return unsupported("{}: lies in more than {} groups", where, kMostGroups);
    }
    if (++paths_ > most_paths_) {
      return unsupported("{}: is one of more than {} paths in a file of {} bytes",
                         where, most_paths_, file_.source()->size());
    }
    const bool is_new = !known_.contains(address);
    if (is_new) HOLDFAST_TRY(read_object(address, path, where));
    Known& known = known_.at(address);
    if (!known.group) {
      if (!is_new && known.tensor != kNoTensor) {
        tree_.tensors[known.tensor].aliases.push_back(path);
      }
      return {};
    }
    if (!known.open) return visit_links(known, address, path, depth);
    if (!soft) return unsupported("{} is a link to a group that it lies in", where);
    values_.simplified().push_back(where + ": a link to a group that it lies in");
    return {};
  }

  Result<void> visit_links(Known& known, uint64_t address, const std::string& path,
                           int depth) {
    known.open = true;
    for (const Link& link : known.links) {
      const std::string name = path.empty() ? link.name : path + "/" + link.name;
      const bool soft = link.address == kUndefined;
      const uint64_t to =
          soft ? HOLDFAST_TRY(resolve(address, link.target, 0)) : link.address;
      if (to == kUndefined) {
        values_.simplified().push_back(
            fmt::format("{}: a link to {}, which is not there", place(name),
                        printable(link.target)));
        continue;
      }
      HOLDFAST_TRY(visit(to, name, depth + 1, soft));
    }
    known.open = false;
    return {};
  }

  // Returns the address that the path of a soft link leads to from a group; kUndefined if
  // nothing is there.
  Result<uint64_t> resolve(uint64_t group, std::string_view target, int depth) {
    if (depth > kMostSoftLinks) return kUndefined;
    uint64_t at = target.starts_with('/') ? file_.root() : group;
    while (!target.empty() && at != kUndefined) {
      const std::string_view name = target.substr(0, target.find('/'));
      target.remove_prefix(std::min(target.size(), name.size() + 1));
      if (name.empty() || name == ".") continue;
      at = HOLDFAST_TRY(step_to(at, name, depth));
    }
    return at;
  }

  Result<uint64_t> step_to(uint64_t group, std::string_view name, int depth) {
    if (!known_.contains(group)) {
      // A group that was not visited yet: its own path names it later.
      const std::string where = fmt::format("{}: group at {}", file_.name(), group);
      const ObjectHeader header = HOLDFAST_TRY(read_object_header(file_, group, where));
      if (!is_group(header)) return kUndefined;
      if (!peeked_.contains(group)) {
        peeked_[group] = HOLDFAST_TRY(sorted_links(header, where));
      }
    }
    const auto known = known_.find(group);
    const auto& links = known == known_.end() ? peeked_.at(group) : known->second.links;
    const auto found = std::ranges::lower_bound(links, name, {}, &Link::name);
    if (found == links.end() || found->name != name) return kUndefined;
    if (found->address != kUndefined) return found->address;
    return resolve(group, std::string(found->target), depth + 1);
  }

  Result<std::vector<Link>> sorted_links(const ObjectHeader& header,
                                         const std::string& where) const {
    std::vector<Link> links = HOLDFAST_TRY(read_links(file_, header, where));
    std::ranges::sort(links, {}, &Link::name);
    for (size_t i = 0; i < links.size(); ++i) {
      const std::string& name = links[i].name;
      if (name.empty() || name == "." || name.find('/') != name.npos ||
          !is_utf8(name)) {
        return unsupported(
            "{}: has a link called \"{}\"; expected a name in UTF-8 without a slash",
            where, printable(name));
      }
      if (i == 0 || name != links[i - 1].name) continue;
      return corrupt("{}: has two links called {}", where, printable(name));
    }
    return links;
  }

  // Reads the object and what it has beside its links or elements.
  Result<void> read_object(uint64_t address, const std::string& path,
                           const std::string& where) {
    const ObjectHeader header = HOLDFAST_TRY(read_object_header(file_, address, where));
    Known known{.group = is_group(header)};
    if (path.empty() && !known.group) return corrupt("{}: root is not a group", where);
    auto attributes = HOLDFAST_TRY(values_.read_attributes(header, where));
    for (const auto name : kSplitAttributes) join_split_attribute(attributes, name);
    std::ranges::sort(attributes, {}, &Attribute::name);
    if (known.group) {
      known.links = HOLDFAST_TRY(sorted_links(header, where));
    } else if (is_dataset(header)) {
      known.tensor = HOLDFAST_TRY(add_dataset(header, path, where, attributes));
    }
    keep_attributes(path, std::move(attributes));
    known_.emplace(address, std::move(known));
    return {};
  }

  void keep_attributes(const std::string& path, std::vector<Attribute> attributes) {
    if (path.empty()) {
      tree_.root_attributes = std::move(attributes);
      return;
    }
    if (attributes.empty()) return;
    Object::Dict dict;
    for (Attribute& attribute : attributes) {
      dict.items.emplace_back(Object(attribute.name), std::move(attribute.value));
    }
    tree_.attributes.items.emplace_back(Object(path), Object(std::move(dict)));
  }

  // Returns the number of the tensor, or kNoTensor for other values.
  Result<size_t> add_dataset(const ObjectHeader& header, const std::string& path,
                             const std::string& where,
                             std::vector<Attribute>& attributes) {
    Dataset dataset = HOLDFAST_TRY(read_dataset(file_, header, where));
    apply_keras_dtype(dataset, attributes);
    const Datatype& type = dataset.type;
    const bool is_text =
        type.kind == Datatype::Kind::kText || type.kind == Datatype::Kind::kHeapText;
    if (dataset.null || is_text) {
      Object value =
          dataset.null ? Object() : HOLDFAST_TRY(values_.read_strings(dataset));
      tree_.values.items.emplace_back(Object(path), std::move(value));
      return kNoTensor;
    }
    if (type.kind != Datatype::Kind::kNumber) {
      return unsupported(
          "{} holds elements of {}; expected numbers, booleans, complex numbers or "
          "strings",
          where, type.what);
    }
    HOLDFAST_TRY(check_size(dataset));
    tree_.tensors.push_back(
        {.name = path, .dtype = type.dtype, .shape = dataset.shape});
    tree_.datasets.push_back(std::make_shared<const Dataset>(std::move(dataset)));
    return tree_.tensors.size() - 1;
  }

  // A small file can name a large dataset without elements. A reader would run out of
  // memory.
  Result<void> check_size(const Dataset& dataset) const {
    if (dataset.storage == Storage::kPlain || dataset.bytes() <= kMostUnwritten)
      return {};
    if (dataset.bytes() <= most_inflated(file_.source()->size())) return {};
    return unsupported(
        "{} has {} bytes, but the whole file has only {}; expected elements that "
        "are stored in the file",
        dataset.where, dataset.bytes(), file_.source()->size());
  }

  const File& file_;
  ValueReader values_;
  Tree tree_;
  std::unordered_map<uint64_t, Known> known_;
  std::unordered_map<uint64_t, std::vector<Link>> peeked_;
  const int64_t most_paths_;
  int64_t paths_ = 0;
};

}  // namespace

Result<Tree> read_tree(const File& file) { return Walker(file).walk(); }

}  // namespace holdfast::hdf5

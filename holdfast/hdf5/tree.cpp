// Walks through the groups of a file and names what it finds.
#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "holdfast/base/deflate.h"
#include "holdfast/base/json_text.h"
#include "holdfast/contents/left_out.h"
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
// What all paths together may have, for each byte of the file, and how many steps from
// group to group all soft links together may take, beside one for each byte.
constexpr int64_t kFewPathBytes = int64_t{16} << 20;
constexpr int64_t kPathBytes = 16;
constexpr int64_t kFewSteps = int64_t{1} << 20;
constexpr int kMostSoftLinks = 16;
// A dataset may have this many bytes even if the file has hardly any.
constexpr int64_t kMostUnwritten = int64_t{1} << 30;

Attribute* find_attribute(std::vector<Attribute>& attributes, std::string_view name) {
  const auto found = std::ranges::find(attributes, name, &Attribute::name);
  return found == attributes.end() ? nullptr : &*found;
}

// Joins the parts that Keras made of a list of names.
void join_split_attribute(std::vector<Attribute>& attributes, std::string_view name) {
  if (find_attribute(attributes, name) != nullptr) return;
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < attributes.size(); ++i) {
    if (attributes[i].name.starts_with(name)) places.emplace(attributes[i].name, i);
  }
  Object::List all;
  std::set<std::string> parts;
  for (;;) {
    std::string part = fmt::format("{}{}", name, parts.size());
    const auto place = places.find(part);
    if (place == places.end()) break;
    const auto* list = attributes[place->second].value.as<Object::List>();
    if (list == nullptr) break;
    std::ranges::copy(list->items, std::back_inserter(all.items));
    parts.insert(std::move(part));
  }
  if (parts.empty()) return;
  std::erase_if(attributes, [&](const Attribute& attribute) {
    return parts.contains(attribute.name);
  });
  attributes.push_back({std::string(name), Object(std::move(all))});
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

bool is_odd_name(std::string_view name) {
  return name.empty() || name == "." || name.find('/') != name.npos || !is_utf8(name);
}

class Walker {
 public:
  explicit Walker(const File& file)
      : file_(file),
        values_(file),
        most_paths_(std::min(kMostPaths, kFewPaths + file.source()->size() / 8)),
        path_bytes_(kFewPathBytes + kPathBytes * file.source()->size()),
        steps_(kFewSteps + file.source()->size()) {}

  Result<Tree> walk() && {
    HOLDFAST_TRY(visit(file_.root(), "", 0));
    std::ranges::move(values_.left_out(), std::back_inserter(tree_.left_out));
    std::ranges::move(values_.not_kept(), std::back_inserter(tree_.details.not_kept));
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
    std::string why{};  // why an object is left out
  };

  std::string place(const std::string& path) const {
    return place_of_path(file_, path);
  }
  void leave_out(const std::string& path, std::string_view why) {
    tree_.left_out.push_back(fmt::format("{}: {}", path, why));
  }
  void note_not_kept(const std::string& path, std::string_view what) {
    tree_.details.not_kept.push_back(fmt::format("{}: {}", path, what));
  }

  Result<void> count_path(const std::string& path, int depth) {
    if (depth > kMostGroups) {
      return unsupported("{}: lies in more than {} groups", place(path), kMostGroups);
    }
    path_bytes_ -= std::ssize(path);
    if (++paths_ > most_paths_ || path_bytes_ < 0) {
      return unsupported("{}: is one of {} paths, which are too many or too long for a "
                         "file of {} bytes",
                         place(path), paths_, file_.source()->size());
    }
    return {};
  }

  Result<void> visit(uint64_t address, const std::string& path, int depth) {
    const bool is_new = !known_.contains(address);
    if (is_new) HOLDFAST_TRY(read_object(address, path));
    Known& known = known_.at(address);
    if (!known.why.empty()) {
      leave_out(path, known.why);
    } else if (known.group) {
      return visit_links(known, address, path, depth);
    } else if (!is_new && known.tensor != kNoTensor) {
      tree_.tensors[known.tensor].aliases.push_back(path);
    }
    return {};
  }

  Result<void> visit_links(Known& known, uint64_t address, const std::string& path,
                           int depth) {
    known.open = true;
    if (known.links.empty() && !path.empty()) tree_.details.empty_groups.insert(path);
    for (const Link& link : known.links) {
      const std::string name = path.empty() ? link.name : path + "/" + link.name;
      HOLDFAST_TRY(count_path(name, depth + 1));
      if (link.elsewhere) {
        leave_out(name, "is a link to another file; expected one inside the file");
        continue;
      }
      const bool soft = link.address == kUndefined;
      const uint64_t to =
          soft ? HOLDFAST_TRY(find_target(address, link, name)) : link.address;
      if (to == kUndefined) continue;
      const auto there = known_.find(to);
      const bool inside_itself = there != known_.end() && there->second.open;
      if (inside_itself && !soft) note_not_kept(name, "a link to a group that it lies in");
      if (!inside_itself) HOLDFAST_TRY(visit(to, name, depth + 1));
    }
    known.open = false;
    return {};
  }

  // Notes a soft link, and returns the address that it leads to; kUndefined if nothing is
  // there.
  Result<uint64_t> find_target(uint64_t group, const Link& link,
                               const std::string& name) {
    if (is_utf8(link.target)) {
      tree_.details.soft_links[name] = link.target;
    } else {
      note_not_kept(name, "a link to a path that is not UTF-8");
    }
    int links_left = kMostSoftLinks;
    return resolve(group, link.target, links_left);
  }

  // Returns the address that a path leads to from a group; kUndefined if nothing is there,
  // or only behind more soft links than HDF5 follows.
  Result<uint64_t> resolve(uint64_t group, std::string_view target, int& links_left) {
    if (--links_left < 0) return kUndefined;
    uint64_t at = target.starts_with('/') ? file_.root() : group;
    while (!target.empty() && at != kUndefined) {
      const std::string_view name = target.substr(0, target.find('/'));
      target.remove_prefix(std::min(target.size(), name.size() + 1));
      if (name.empty() || name == ".") continue;
      at = HOLDFAST_TRY(step_to(at, name, links_left));
    }
    return at;
  }

  Result<uint64_t> step_to(uint64_t group, std::string_view name, int& links_left) {
    if (--steps_ < 0) {
      return unsupported(
          "{}: has soft links that lead over too many groups for a file of {} bytes",
          file_.name(), file_.source()->size());
    }
    const std::vector<Link>* links = HOLDFAST_TRY(links_of(group));
    if (links == nullptr) return kUndefined;
    const auto found = std::ranges::lower_bound(*links, name, {}, &Link::name);
    if (found == links->end() || found->name != name) return kUndefined;
    if (found->address != kUndefined || found->elsewhere) return found->address;
    return resolve(group, std::string(found->target), links_left);
  }

  // The links of an object that may not have been visited yet: its own path names it
  // later. Null if it is no group.
  Result<const std::vector<Link>*> links_of(uint64_t address) {
    if (const auto known = known_.find(address); known != known_.end()) {
      return known->second.group ? &known->second.links : nullptr;
    }
    if (const auto peeked = peeked_.find(address); peeked != peeked_.end()) {
      return peeked->second ? &*peeked->second : nullptr;
    }
    auto& links = peeked_[address];
    const std::string where = fmt::format("{}: group at {}", file_.name(), address);
    const ObjectHeader header = HOLDFAST_TRY(read_object_header(file_, address, where));
    if (!is_group(header)) return nullptr;
    auto read = sorted_links(header, where);
    if (!read.ok() && read.error().code() == ErrorCode::kUnsupported) return nullptr;
    links = HOLDFAST_TRY(std::move(read));
    return &*links;
  }

  Result<std::vector<Link>> sorted_links(const ObjectHeader& header,
                                         const std::string& where) const {
    std::vector<Link> links = HOLDFAST_TRY(read_links(file_, header, where));
    std::ranges::sort(links, {}, &Link::name);
    for (size_t i = 1; i < links.size(); ++i) {
      if (links[i].name != links[i - 1].name) continue;
      return corrupt("{}: has two links called {}", where, printable(links[i].name));
    }
    return links;
  }

  // Links whose names cannot be parts of a path are left out.
  void remove_odd_links(std::vector<Link>& links, const std::string& path) {
    std::erase_if(links, [&](const Link& link) {
      if (!is_odd_name(link.name)) return false;
      leave_out(path.empty() ? "/" : path,
                fmt::format("has a link called {}; expected a name in UTF-8 without a "
                            "slash",
                            shown(link.name)));
      return true;
    });
  }

  // Reads the object and what it has beside its links or elements. One that is odd is left
  // out, and the rest of the file is used.
  Result<void> read_object(uint64_t address, const std::string& path) {
    const std::string where = place(path);
    const ObjectHeader header = HOLDFAST_TRY(read_object_header(file_, address, where));
    Known known{.group = is_group(header)};
    if (path.empty() && !known.group) return corrupt("{}: root is not a group", where);
    const auto read = read_parts(header, path, known);
    if (!read.ok()) {
      if (path.empty() || read.error().code() != ErrorCode::kUnsupported) {
        return read.error();
      }
      known.why = why_of(read.error(), where);
    }
    known_.emplace(address, std::move(known));
    return {};
  }

  Result<void> read_parts(const ObjectHeader& header, const std::string& path,
                          Known& known) {
    const std::string where = place(path);
    auto attributes = HOLDFAST_TRY(read_attributes(header, path));
    if (known.group) {
      known.links = HOLDFAST_TRY(sorted_links(header, where));
      remove_odd_links(known.links, path);
    } else if (is_dataset(header)) {
      known.tensor = HOLDFAST_TRY(add_dataset(header, path, where, attributes));
    } else {
      note_not_kept(path, "a named datatype");
    }
    keep_attributes(path, std::move(attributes));
    return {};
  }

  Result<std::vector<Attribute>> read_attributes(const ObjectHeader& header,
                                                 const std::string& path) {
    auto read = values_.read_attributes(header, path);
    if (!read.ok() && read.error().code() == ErrorCode::kUnsupported) {
      leave_out(path.empty() ? "/" : path,
                "attributes: " + why_of(read.error(), place(path)));
      return std::vector<Attribute>();
    }
    auto attributes = HOLDFAST_TRY(std::move(read));
    for (const auto name : kSplitAttributes) join_split_attribute(attributes, name);
    std::ranges::sort(attributes, {}, &Attribute::name);
    return attributes;
  }

  void keep_attributes(const std::string& path, std::vector<Attribute> attributes) {
    for (Attribute& attribute : attributes) {
      if (!attribute.stored) continue;
      attribute.stored->value = attribute.value;
      tree_.details.attributes[path.empty() ? "/" : path].emplace(
          attribute.name, *std::move(attribute.stored));
    }
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
      ValueReader::Strings read{.stored = Hdf5Value{type.message, true}};
      if (!dataset.null) read = HOLDFAST_TRY(values_.read_strings(dataset));
      if (read.stored) {
        read.stored->value = read.value;
        tree_.details.values.emplace(path, *std::move(read.stored));
      }
      tree_.values.items.emplace_back(Object(path), std::move(read.value));
      return kNoTensor;
    }
    if (type.kind != Datatype::Kind::kNumber) {
      return unsupported(
          "{} holds elements of {}; expected numbers, booleans, complex numbers or "
          "strings",
          where, type.what);
    }
    HOLDFAST_TRY(check_size(dataset));
    if (!type.names.empty()) tree_.details.enumerations[path] = type.names;
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
  // Those of objects that soft links lead to before they are visited; none if an object
  // is no group.
  std::unordered_map<uint64_t, std::optional<std::vector<Link>>> peeked_;
  const int64_t most_paths_;
  int64_t paths_ = 0;
  int64_t path_bytes_;  // how many bytes of paths there may still be
  int64_t steps_;       // how many steps soft links may still take
};

}  // namespace

Result<Tree> read_tree(const File& file) { return Walker(file).walk(); }

}  // namespace holdfast::hdf5

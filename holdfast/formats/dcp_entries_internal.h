// Chooses which entries a folder of DCP has. Shared by dcp_writer.cpp and dcp_folder.cpp.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "holdfast/contents/side_metadata.h"
#include "holdfast/formats/dcp_internal.h"

namespace holdfast::dcp {

// An entry that will be written.
struct PlannedEntry {
  Entry entry{};
  std::optional<TensorId> tensor{};
  bool first = true;               // no entry before it has the same tensor
  const Object* object = nullptr;  // if it is no tensor
};

// Chooses the entries of a state dict: flattens it as torch does.
class EntryPlanner {
 public:
  // `contents` must outlive the planner and its entries.
  explicit EntryPlanner(const Contents& contents)
      : contents_(contents), stored_(contents.collection.tensors().size()) {}

  Result<void> plan();

  std::vector<PlannedEntry>& entries() { return entries_; }
  // How the tensors are stored, for keep_beside().
  const std::vector<StoredAs>& stored() const { return stored_; }
  // The objects that a reader makes of the entries.
  Result<Object> objects() const;

 private:
  Result<void> visit(const Object& step, const Object& value);
  Result<void> visit_value(const Object& value);
  Result<void> add_leaf(const std::string& name);
  Result<void> add_missing(const std::string& name);
  Result<void> add(PlannedEntry planned);
  bool try_add(const PlannedEntry& planned);

  const Contents& contents_;
  std::vector<PlannedEntry> entries_;
  std::vector<StoredAs> stored_;
  std::vector<Object> path_;
  bool in_list_ = false;  // whether the next step is an index
  std::set<std::string> names_;
  std::set<std::string> leaves_;
  int64_t next_ = 0;
  TreeBuilder tree_;
};

// What of the contents DCP itself cannot hold. It is kept as texts in further items of the
// folder; the result has the texts by the names of these items.
Result<KeptTexts> kept_texts(const Contents& contents, const EntryPlanner& planner);

}  // namespace holdfast::dcp

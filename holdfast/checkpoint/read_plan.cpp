// Plans which stored piece each part of this rank's memory is read from.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "holdfast/checkpoint/read_pieces.h"
#include "holdfast/checkpoint/read_plan_internal.h"
#include "holdfast/plan/plan.h"

namespace holdfast {
namespace {

constexpr size_t kNamed = 5;  // how many tensors a message names at most

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamed) text += fmt::format(" and {} more", names.size() - kNamed);
  return text;
}

// Returns an alias of `tensor` that is a tensor with other values in the step. `as` is
// `tensor` in the step.
std::optional<std::string> find_split_alias(const StepFiles& step, const Tensor& tensor,
                                            TensorId as) {
  for (const std::string& alias : tensor.aliases) {
    const std::optional<TensorId> other = step.collection.find(alias);
    if (other.has_value() && step.seals[*other] != step.seals[as]) return alias;
  }
  return std::nullopt;
}

// The pieces that this rank wants, as a collection. A layout has one piece per holder
// and box, but several tensors here may be one tensor in the step (they were aliases
// then and are not any more). So each of them gets a holder of its own, called a place.
struct Wanted {
  Collection collection;
  std::vector<const LocalPiece*> pieces;  // by PieceId
};

// For each tensor of `into` its number among the tensors that are the same tensor in
// the step: 0, 1, ...
using Places = std::unordered_map<std::string_view, HolderId>;
Places number_places(const StepFiles& step, const LocalState& into) {
  std::unordered_map<TensorId, HolderId> seen;
  Places places;
  for (const Tensor& tensor : into.collection->tensors()) {
    const std::optional<TensorId> id = find_in(step, tensor);
    places[tensor.name] = id.has_value() ? seen[*id]++ : 0;
  }
  return places;
}

Result<Wanted> list_wanted(const StepFiles& step, const LocalState& into) {
  std::vector<Tensor> tensors(step.collection.tensors().begin(),
                              step.collection.tensors().end());
  const Places places = number_places(step, into);
  HolderId most = 0;
  for (const auto& [name, place] : places) most = std::max(most, place);
  std::vector<Holder> holders;
  for (HolderId h = 0; h <= most; ++h) {
    holders.push_back({.name = fmt::format("place {} of this rank", h)});
  }
  LayoutBuilder builder(tensors, std::move(holders));
  std::map<std::tuple<TensorId, HolderId, Box>, const LocalPiece*> local;
  std::vector<int64_t> offsets(most + 1);
  for (const LocalPiece& piece : into.pieces) {
    const TensorId id = *find_in(step, *piece.tensor);
    const HolderId place = places.at(piece.tensor->name);
    builder.add(id, piece.box, place, offsets[place]);
    offsets[place] += piece.bytes();
    local[{id, place, piece.box}] = &piece;
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  Wanted wanted{.collection = HOLDFAST_TRY(
                    Collection::create(std::move(tensors), std::move(layout))),
                .pieces = {}};
  const Layout& built = wanted.collection.layout();
  wanted.pieces.resize(built.piece_count());
  for (TensorId t = 0; t < built.tensor_count(); ++t) {
    for (const Slice& slice : built.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        wanted.pieces[p] = local.at({t, built.holder(p), slice.box});
      }
    }
  }
  return wanted;
}

Result<ReadPlan> assign_reads(const StepFiles& step, const Wanted& wanted) {
  Topology topology = Topology::uniform(1);
  const Plan plan = HOLDFAST_TRY(holdfast::plan(step.collection, wanted.collection,
                                                topology, {.forwarding = false}));
  const Layout& source = step.collection.layout();
  ReadPlan reads(step.files.size());
  for (const Move& move : plan.moves) {
    const int64_t element = bytes_of(step.collection.tensor(move.tensor).dtype);
    const HolderId file = source.holder(move.from);
    const int64_t offset = source.map(move.from, element).offset;
    const auto sealed = step.piece_seals[file].find(offset);
    reads[file].push_back(
        {.tensor = move.tensor,
         .stored = source.box(move.from),
         .offset = offset,
         .element = element,
         .box = plan.boxes[move.box],
         .to = wanted.pieces[move.to],
         .sealed = sealed == step.piece_seals[file].end() ? Seal() : sealed->second});
  }
  for (std::vector<PlannedRead>& of_file : reads) {
    std::sort(of_file.begin(), of_file.end(),
              [](const PlannedRead& a, const PlannedRead& b) {
                return std::tie(a.offset, a.box) < std::tie(b.offset, b.box);
              });
  }
  return reads;
}

}  // namespace

std::optional<TensorId> find_in(const StepFiles& step, const Tensor& tensor) {
  std::optional<TensorId> found = step.collection.find(tensor.name);
  for (const std::string& alias : tensor.aliases) {
    if (!found.has_value()) found = step.collection.find(alias);
  }
  return found;
}

Result<void> check_tensors(const StepFiles& step, const LocalState& into) {
  std::vector<std::string> missing, different;
  std::unordered_set<std::string_view> seen;
  for (const LocalPiece& piece : into.pieces) {
    const Tensor& want = *piece.tensor;
    if (!seen.insert(want.name).second) continue;
    const std::optional<TensorId> found = find_in(step, want);
    if (!found.has_value()) {
      missing.push_back(want.name);
      continue;
    }
    const Tensor& have = step.collection.tensor(*found);
    if (have.dtype == want.dtype && have.shape == want.shape) {
      if (const auto alias = find_split_alias(step, want, *found)) {
        different.push_back(fmt::format(
            "{} and {} are aliases here and have two values", want.name, *alias));
      }
      continue;
    }
    different.push_back(fmt::format("{} is {} {} (expected {} {})", want.name,
                                    name_of(have.dtype), to_string(have.shape),
                                    name_of(want.dtype), to_string(want.shape)));
  }
  if (missing.empty() && different.empty()) return {};
  std::string what;
  if (!missing.empty()) what = "not in it: " + join(missing);
  if (!different.empty()) {
    what += (what.empty() ? "" : "; ") + std::string("different: ") + join(different);
  }
  return invalid("{}: {}", step.folder.native(), what);
}

Result<ReadPlan> plan_reads(const StepFiles& step, const LocalState& into) {
  HOLDFAST_TRY(check_tensors(step, into));
  const Wanted wanted = HOLDFAST_TRY(list_wanted(step, into));
  return assign_reads(step, wanted);
}

std::vector<std::string> unused_tensors(const StepFiles& step, const LocalState& into) {
  std::vector<bool> used(step.collection.tensors().size());
  for (const Tensor& tensor : into.collection->tensors()) {
    if (const auto found = find_in(step, tensor)) used[*found] = true;
    for (const std::string& alias : tensor.aliases) {
      if (const auto found = step.collection.find(alias)) used[*found] = true;
    }
  }
  std::vector<std::string> names;
  for (TensorId t = 0; t < used.size(); ++t) {
    if (!used[t]) names.push_back(step.collection.tensor(t).name);
  }
  return names;
}

}  // namespace holdfast

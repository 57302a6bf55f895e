// Puts the files of a MegatronTarget together, rank by rank.
#include <algorithm>

#include "holdfast/megatron/cut.h"
#include "holdfast/megatron/target_internal.h"

namespace holdfast {

using megatron::Leaf;

bool MegatronTarget::State::is_vocabulary(const Entry& entry, TensorId tensor) const {
  return entry.rule.cut == Cut::kVocabulary &&
         source_->collection.tensor(tensor).shape ==
             source_->collection.tensor(*entry.tensor).shape;
}

// The shape of a rank's part.
Shape MegatronTarget::State::shape_of(const Entry& entry, TensorId tensor) const {
  const Shape& whole = source_->collection.tensor(tensor).shape;
  const Shape& of_parameter = source_->collection.tensor(*entry.tensor).shape;
  if (entry.rule.cut == Cut::kReplicated || whole != of_parameter) return whole;
  const auto sizes = whole.sizes();
  std::vector<int64_t> own(sizes.begin(), sizes.end());
  if (is_vocabulary(entry, tensor)) {
    own[0] = rows_.after / parallel_.tp;
  } else {
    own[static_cast<size_t>(entry.rule.axis)] /= parallel_.tp;
  }
  return Shape::create(own).value();
}

// Where the rows of the vocabulary end that the source has for a rank.
int64_t MegatronTarget::State::rows_there(int64_t rank) const {
  const int64_t own = rows_.after / parallel_.tp;
  return std::clamp(rows_.before, rank * own, rank * own + own);
}

// The boxes of the source that a rank has of a tensor, in the order of its own rows.
std::vector<Box> MegatronTarget::State::boxes_of(const Entry& entry, TensorId tensor,
                                                 int64_t rank) const {
  const Shape& whole = source_->collection.tensor(tensor).shape;
  std::vector<Box> boxes;
  if (is_vocabulary(entry, tensor)) {
    const int64_t begin = rank * (rows_.after / parallel_.tp), end = rows_there(rank);
    if (end > begin) boxes.push_back(Box::whole(whole).with(0, {begin, end}));
    return boxes;
  }
  const bool like = whole == source_->collection.tensor(*entry.tensor).shape;
  const Rule rule = like ? entry.rule : Rule{};
  for (const auto& part : megatron::local_parts(rule, whole, parallel_.tp, rank)) {
    boxes.push_back(part.box);
  }
  return boxes;
}

// The pad rows behind the boxes, if the rank has some that the source does not have.
std::optional<AssembledPart> MegatronTarget::State::padding_of(const Entry& entry,
                                                               TensorId tensor,
                                                               int64_t rank) const {
  if (!is_vocabulary(entry, tensor)) return std::nullopt;
  const int64_t end = (rank + 1) * (rows_.after / parallel_.tp);
  const int64_t there = rows_there(rank);
  if (there == end) return std::nullopt;
  const Tensor& whole = source_->collection.tensor(tensor);
  const auto pad = pad_rows_.find(tensor);
  return part_of_bytes(
      pad != pad_rows_.end()
          ? pad->second
          : Bytes(static_cast<size_t>(whole.bytes() /
                                      std::max<int64_t>(whole.shape[0], 1))),
      end - there);
}

std::optional<TensorId> MegatronTarget::State::find_state(
    const Entry& entry, const std::string& slot) const {
  const std::string& name = source_->collection.tensor(*entry.tensor).name;
  const std::string bare = name.starts_with("model.") ? name.substr(6) : name;
  return source_->collection.find(fmt::format("optimizer.{}.{}", bare, slot));
}

MegatronTarget::State::RankParts MegatronTarget::State::begin_rank(
    int64_t file, const ReadForFile& read) const {
  return {.file = file,
          .read = read,
          .place = {file % parallel_.tp, file / parallel_.tp}};
}

// Adds the rank's part of a tensor, and returns the leaf that names it.
Object MegatronTarget::State::add_part(RankParts& rank, const Entry& entry,
                                       TensorId tensor) const {
  const Dtype dtype = source_->collection.tensor(tensor).dtype;
  const auto holder =
      static_cast<HolderId>(rank.file + files() * rank.times[tensor]++);
  AssembledTensor made{.tensor = {.name = fmt::format("part.{}", rank.tensors.size()),
                                  .dtype = dtype,
                                  .shape = shape_of(entry, tensor)}};
  for (const Box& box : boxes_of(entry, tensor, rank.place.tensor)) {
    made.parts.push_back(part_of_box(rank.read, holder, tensor, dtype, box));
    if (!box.empty()) rank.reads.push_back({holder, tensor, box});
  }
  if (auto padding = padding_of(entry, tensor, rank.place.tensor)) {
    made.parts.push_back(*std::move(padding));
  }
  rank.bytes += made.tensor.bytes();
  rank.tensors.push_back(std::move(made));
  return Object(Object::TensorName{rank.tensors.back().tensor.name});
}

// Puts all files together without reading them, so that what is planned is what will be
// read.
Result<void> MegatronTarget::State::plan_reads() {
  std::vector<RankParts::Read> all;
  auto holders = static_cast<HolderId>(files());
  for (int64_t file = 0; file < files(); ++file) {
    RankParts rank = begin_rank(file, {});
    static_cast<void>(objects_of(rank));
    bytes_ += rank.bytes;
    for (RankParts::Read& read : rank.reads) {
      holders = std::max(holders, read.holder + 1);
      all.push_back(std::move(read));
    }
  }
  std::vector<Holder> named;
  for (HolderId h = 0; h < holders; ++h) {
    named.push_back({.name = fmt::format("file {}", h), .kind = HolderKind::kFile});
  }
  const auto tensors = source_->collection.tensors();
  std::vector<Tensor> own(tensors.begin(), tensors.end());
  LayoutBuilder builder(own, std::move(named));
  std::vector<int64_t> sizes(holders);
  for (const RankParts::Read& read : all) {
    int64_t& size = sizes[read.holder];
    builder.add(read.tensor, read.box, read.holder, size);
    size += read.box.elements() * bytes_of(own[read.tensor].dtype);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  reads_ = HOLDFAST_TRY(Collection::create(std::move(own), std::move(layout)));
  return {};
}

Object MegatronTarget::State::model_of(RankParts& rank) const {
  Object model{Object::Dict{}};
  const int64_t of_stage = std::max<int64_t>(layers_ / parallel_.pp, 1);
  for (const Entry& entry : entries_) {
    if (entry.stage != rank.place.stage) continue;
    Leaf leaf = entry.leaf;
    if (const auto layer = megatron::layer_of(leaf.path)) {
      leaf.path = megatron::with_layer(std::move(leaf.path), *layer % of_stage);
    }
    if (entry.tensor) {
      rank.parameters.push_back(&entry);
      rank.local.push_back({.name = megatron::joined(leaf.path),
                            .dtype = source_->collection.tensor(*entry.tensor).dtype,
                            .shape = shape_of(entry, *entry.tensor),
                            .buffer = entry.rule.buffer});
      leaf.value = add_part(rank, entry, *entry.tensor);
    }
    megatron::add_leaf(model, leaf);
  }
  return model;
}

Object MegatronTarget::State::optimizer_of(RankParts& rank,
                                           const Object& common) const {
  const auto leaf_of = [&](size_t i, const std::string& slot) -> Object {
    const Entry& entry = *rank.parameters[i];
    const auto state = find_state(entry, slot);
    return state ? add_part(rank, entry, *state) : Object();
  };
  return megatron::number_state(megatron::with_tensors(common, rank.tensors),
                                rank.local, leaf_of);
}

Object MegatronTarget::State::objects_of(RankParts& rank) const {
  // The model comes first, because the optimizer is numbered by its parameters.
  const Object model = model_of(rank);
  Object objects{Object::Dict{}};
  for (const auto& [key, value] : source_->objects.as<Object::Dict>()->items) {
    const auto* name = key.as<std::string>();
    if (name == nullptr) continue;
    if (*name == "model") {
      megatron::set_key(objects, *name, model);
    } else if (*name == "args") {
      megatron::set_key(
          objects, *name,
          megatron::args_of_rank(value, parallel_, rank.place, rows_.after));
    } else if (*name == "optimizer") {
      megatron::set_key(objects, *name, optimizer_of(rank, value));
    } else if (*name != megatron::kRanksKey) {
      megatron::set_key(objects, *name, megatron::with_tensors(value, rank.tensors));
    } else if (random_.enough()) {
      const Object state = random_.state_of(rank.place);
      megatron::set_key(objects, megatron::kRandomKey,
                        megatron::with_tensors(state, rank.tensors));
    }
  }
  return objects;
}

Result<Contents> MegatronTarget::State::contents_of(int64_t file,
                                                    const ReadForFile& read) const {
  RankParts rank = begin_rank(file, read);
  Object objects = objects_of(rank);
  return assemble(file_name(file), std::move(rank.tensors), std::move(objects));
}

}  // namespace holdfast

#include "holdfast/megatron/rank_objects.h"

#include <algorithm>

#include "holdfast/megatron/objects.h"

namespace holdfast::megatron {
namespace {

std::string rank_key(int64_t tensor, int64_t stage) {
  return fmt::format("{:02}_{:03}", tensor, stage);
}

// Replaces the generators of model parallelism.
void set_trackers(Object& state, const Object& own) {
  auto* list = std::get_if<Object::List>(&state.value());
  const auto* own_list = own.as<Object::List>();
  if (list == nullptr || own_list == nullptr) return;
  for (size_t i = 0; i < std::min(list->items.size(), own_list->items.size()); ++i) {
    const Object* trackers = find_key(own_list->items[i], "rng_tracker_states");
    if (trackers != nullptr && list->items[i].as<Object::Dict>() != nullptr) {
      set_key(list->items[i], "rng_tracker_states", *trackers);
    }
  }
}

}  // namespace

Object args_of_rank(const Object& args, const Parallel& parallel, const RankPlace& rank,
                    int64_t padded_rows) {
  const std::pair<const char*, int64_t> values[] = {
      {"tensor_model_parallel_size", parallel.tp},
      {"pipeline_model_parallel_size", parallel.pp},
      {"transformer_pipeline_model_parallel_size", parallel.pp},
      {"model_parallel_size", parallel.tp},
      {"data_parallel_size", parallel.dp},
      {"world_size", parallel.positions()},
      {"rank", rank.tensor + parallel.tp * parallel.dp * rank.stage},
      {"padded_vocab_size", padded_rows}};
  Object own = args;
  for (const auto& [key, value] : values) {
    Object* found = find_key(own, key);
    if (found != nullptr && !found->none()) *found = Object(value);
  }
  return own;
}

RandomStates::RandomStates(const Object& objects, const Parallel& parallel)
    : ranks_(find_key(objects, kRanksKey)), parallel_(parallel) {
  const auto* dict = ranks_ == nullptr ? nullptr : ranks_->as<Object::Dict>();
  if (dict == nullptr || dict->items.empty()) return;
  there_ = std::ssize(dict->items);
  while (find_key(*ranks_, rank_key(tp_, 0)) != nullptr) ++tp_;
  pp_ = std::max<int64_t>(there_ / tp_, 1);
  enough_ = there_ >= parallel.tp * parallel.pp && there_ == tp_ * pp_;
}

Object RandomStates::state_of(const RankPlace& rank) const {
  const int64_t number = rank.stage * parallel_.tp + rank.tensor;
  const Object* shared =
      find_key(*ranks_, rank_key(0, rank.stage * pp_ / parallel_.pp));
  const Object* own = find_key(*ranks_, rank_key(number % tp_, number / tp_));
  if (shared == nullptr || own == nullptr) return Object();
  Object state = *shared;
  set_trackers(state, *own);
  return state;
}

Object with_tensors(const Object& object, std::vector<AssembledTensor>& tensors) {
  if (auto stored = bytes_of_tensor(object)) {
    AssembledTensor made{.tensor = {.name = fmt::format("bytes.{}", tensors.size()),
                                    .dtype = stored->dtype,
                                    .shape = stored->shape}};
    if (!stored->bytes.empty()) {
      made.parts.push_back(part_of_bytes(std::move(stored->bytes)));
    }
    tensors.push_back(std::move(made));
    return Object(Object::TensorName{tensors.back().tensor.name});
  }
  Object changed = object;
  if (auto* list = std::get_if<Object::List>(&changed.value())) {
    for (Object& item : list->items) item = with_tensors(item, tensors);
  } else if (auto* tuple = std::get_if<Object::Tuple>(&changed.value())) {
    for (Object& item : tuple->items) item = with_tensors(item, tensors);
  } else if (auto* dict = std::get_if<Object::Dict>(&changed.value())) {
    for (auto& [key, value] : dict->items) value = with_tensors(value, tensors);
  }
  return changed;
}

}  // namespace holdfast::megatron

#include "holdfast/checkpoint/replica_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "holdfast/base/checked.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {
namespace {

using Holders = std::vector<HolderId>;

Holders holders_of(const Layout& layout, const Slice& slice) {
  Holders holders;
  for (PieceId p = slice.first; p < slice.last; ++p)
    holders.push_back(layout.holder(p));
  std::ranges::sort(holders);
  return holders;
}

int64_t parts_of(const Tensor& tensor, const Box& box) {
  return divide_up(box.elements() * bytes_of(tensor.dtype), Replicas::kPart);
}

}  // namespace

// Every rank goes through all boxes of the collection in the same order, also those
// that it does not hold, so that all ranks give groups and parts the same numbers.
Replicas::Replicas(const LocalState& state) {
  std::map<std::pair<std::string_view, holdfast::Box>, const LocalPiece*> local;
  for (const LocalPiece& piece : state.pieces) {
    local[{piece.tensor->name, piece.box}] = &piece;
  }
  struct Group {
    size_t number = 0;
    int64_t parts = 0;
    int64_t bytes = 0;
  };
  std::map<Holders, Group> groups;
  const Layout& layout = state.collection->layout();
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    const Tensor& tensor = state.collection->tensor(t);
    for (const Slice& slice : layout.slices(t)) {
      if (slice.last - slice.first < 2 || slice.box.empty()) continue;
      Group& group = groups.try_emplace(holders_of(layout, slice), Group{groups.size()})
                         .first->second;
      const int64_t first_part = group.parts;
      group.parts += parts_of(tensor, slice.box);
      group.bytes += slice.box.elements() * bytes_of(tensor.dtype);
      const auto found = local.find({tensor.name, slice.box});
      if (found == local.end()) continue;
      boxes_.push_back(
          {.piece = *found->second, .group = group.number, .first_part = first_part});
    }
  }
  std::vector<int64_t> bytes(groups.size());
  for (const auto& [holders, group] : groups) bytes[group.number] = group.bytes;
  choose_turns(bytes);
  name_groups(groups.size());
}

// Decides in how many saves each box is read. Leaves out boxes marked at_once if there
// are many or they are on a device, because save() itself would read them and training
// would wait too long.
void Replicas::choose_turns(std::span<const int64_t> bytes_of_groups) {
  int64_t at_once = 0;
  for (Box& box : boxes_) {
    box.turns = bytes_of_groups[box.group] <= kSmall ? 1 : kTurns;
    if (box.piece.at_once) at_once += box.bytes_a_turn();
  }
  std::erase_if(boxes_, [&](const Box& box) {
    return box.piece.at_once && (at_once > kAtOnce || box.piece.device != nullptr);
  });
}

void Replicas::name_groups(size_t count) {
  std::vector<std::string> read(count);  // which boxes of each group this rank reads
  for (const Box& box : boxes_) {
    read[box.group] += fmt::format("{} ", box.first_part);
    const Device* const device = box.piece.device;
    if (device != nullptr && std::ranges::count(devices_, device) == 0) {
      devices_.push_back(device);
    }
  }
  for (size_t group = 0; group < count; ++group) {
    const std::string digest = xxh3_128(bytes_of(read[group])).hex();
    groups_.push_back(read[group].empty() ? ""
                                          : fmt::format("{}/{:.8}", group, digest));
  }
}

int64_t Replicas::bytes_a_turn() const {
  int64_t bytes = 0;
  for (const Box& box : boxes_) bytes += box.bytes_a_turn();
  return bytes;
}

ReplicaDigests::ReplicaDigests(std::shared_ptr<const Replicas> replicas, uint64_t turn)
    : replicas_(std::move(replicas)),
      turn_(static_cast<int64_t>(turn % static_cast<uint64_t>(Replicas::kTurns))),
      sums_(replicas_->groups().size()) {}

void ReplicaDigests::take_at_once() {
  Bytes window;  // for pieces that are not contiguous in memory
  for (const Replicas::Box& box : replicas_->boxes()) {
    if (!box.piece.at_once) continue;
    window.resize(static_cast<size_t>(Replicas::kPart));
    add(box, window);
  }
}

void ReplicaDigests::take(ByteSpan window) {
  for (const Replicas::Box& box : replicas_->boxes()) {
    if (!box.piece.at_once && !add(box, window)) return;
  }
  MutexLock lock(mutex_);
  all_ = !stopped_;
}

bool ReplicaDigests::add(const Replicas::Box& box, ByteSpan window) {
  const int64_t parts = divide_up(box.piece.bytes(), Replicas::kPart);
  // Begins at the first part of the box whose number in the group belongs to this turn.
  const int64_t ahead = turn_ % box.turns - box.first_part % box.turns;
  for (int64_t part = ahead < 0 ? ahead + box.turns : ahead; part < parts;
       part += box.turns) {
    if (!add_part(box, part, window)) return false;
  }
  return true;
}

bool ReplicaDigests::add_part(const Replicas::Box& box, int64_t part, ByteSpan window) {
  const int64_t first = part * Replicas::kPart;
  const ByteSpan into = window.first(
      static_cast<size_t>(std::min(Replicas::kPart, box.piece.bytes() - first)));
  const std::optional<Digest128> digest =
      box.piece.device == nullptr ? digest_on_host(box.piece, first, into)
                                  : digest_on_device(box.piece, first, into);
  if (!digest.has_value()) return false;
  // The number of the part goes into the digest, so that two exchanged parts give
  // another sum.
  const Digest128 numbered =
      xxh3_128(bytes_of(fmt::format("{}:{}", box.first_part + part, digest->hex())));
  sums_[box.group][0] += numbered.low;
  sums_[box.group][1] += numbered.high;
  return true;
}

// Reads while it holds the mutex, so that stop() waits until the read is over.
std::optional<Digest128> ReplicaDigests::digest_on_host(const LocalPiece& piece,
                                                        int64_t first,
                                                        ByteSpan window) {
  MutexLock lock(mutex_);
  if (stopped_) return std::nullopt;
  if (const auto live = piece.window(first, std::ssize(window))) return xxh3_128(*live);
  gather(piece.place(), piece.memory, first, window);
  return xxh3_128(window);
}

// Waits for the device without the mutex, because stop() does not wait for the device
// but makes a stream wait for it.
std::optional<Digest128> ReplicaDigests::digest_on_device(const LocalPiece& piece,
                                                          int64_t first,
                                                          ByteSpan window) {
  const Device& device = *piece.device;
  std::optional<DeviceMark> mark;
  {
    MutexLock lock(mutex_);
    if (stopped_) return std::nullopt;
    if (!device.read(piece.place(), piece.memory, first, window).ok()) {
      return std::nullopt;
    }
    const Result<DeviceMark> marked = device.mark();
    if (!marked.ok()) return std::nullopt;
    mark = read_ = *marked;
  }
  if (!mark->wait().ok()) return std::nullopt;
  return xxh3_128(window);
}

void ReplicaDigests::stop(CudaStream stream, bool spoilt) {
  std::optional<DeviceMark> read;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    all_ = all_ && !spoilt;
    read = read_;
  }
  if (read.has_value()) static_cast<void>(read->device().make_wait(stream, *read));
}

std::string ReplicaDigests::text() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    if (!all_) return "";
  }
  std::string text;
  for (size_t group = 0; group < sums_.size(); ++group) {
    if (replicas_->groups()[group].empty()) continue;
    text += fmt::format("{}:{}{} ", replicas_->groups()[group], hex64(sums_[group][0]),
                        hex64(sums_[group][1]));
  }
  return text;
}

std::optional<std::pair<int, int>> find_difference(std::span<const std::string> texts) {
  // For each group the first rank that has a digest of it, and that digest.
  std::map<std::string, std::pair<int, std::string>> known;
  for (size_t r = 0; r < texts.size(); ++r) {
    std::istringstream words(texts[r]);
    for (std::string word; words >> word;) {
      const size_t colon = word.find(':');
      if (colon == std::string::npos) continue;  // sent by another version
      const int rank = static_cast<int>(r);
      const auto [first, added] =
          known.try_emplace(word.substr(0, colon), rank, word.substr(colon + 1));
      if (!added && first->second.second != word.substr(colon + 1)) {
        return std::pair(first->second.first, rank);
      }
    }
  }
  return std::nullopt;
}

}  // namespace holdfast

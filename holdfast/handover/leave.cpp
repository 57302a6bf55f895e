#include "holdfast/handover/leave.h"

#include <algorithm>
#include <thread>

#include "holdfast/env/free_memory.h"
#include "holdfast/checkpoint/write_plan.h"
#include "holdfast/device/device.h"
#include "holdfast/device/staging_ring.h"
#include "holdfast/shard/shard_writer.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

constexpr int64_t kRingBytes = int64_t{64} << 20;
constexpr int64_t kBlockBytes = int64_t{4} << 20;

// What a rank says in the first round about its place.
struct Room {
  std::string place{};  // SharedPlace::identity()
  int64_t free = 0;
  int64_t shard = 0;
};

Message room_message(const Room& room) {
  return {.kind = room.place,
          .files = {{.name = "free", .bytes = room.free},
                    {.name = "shard", .bytes = room.shard}}};
}

Result<Room> room_of(const Message& said) {
  if (said.files.size() == 2) {
    return Room{.place = said.kind,
                .free = said.files[0].bytes,
                .shard = said.files[1].bytes};
  }
  return corrupt("message of another rank: has {} numbers; expected 2",
                 said.files.size());
}

// Fails, in the same way on all ranks, if the shards of a place do not fit into it.
Result<void> check_room(const std::vector<Room>& rooms, int64_t reserve) {
  std::map<std::string, int64_t> needed;
  for (const Room& room : rooms) needed[room.place] += room.shard;
  for (size_t rank = 0; rank < rooms.size(); ++rank) {
    const int64_t need = needed[rooms[rank].place];
    if (rooms[rank].free - reserve >= need) continue;
    return no_space(
        "memory of the host of rank {}: {} bytes free; expected {} and {} to spare",
        rank, rooms[rank].free, need, reserve);
  }
  return {};
}

class Leaving {
 public:
  Leaving(const JobRanks& ranks, const SharedPlace& place, const LeaveRequest& request,
          const LeaveOptions& options)
      : ranks_(ranks),
        env_(*ranks.env),
        place_(place),
        request_(request),
        options_(options) {}

  Result<LeftStep> run() {
    HOLDFAST_TRY(find_room());
    Result<LeftStep> left = write_and_publish();
    // A rank that has not heard the others does not know whether they have published.
    if (!left.ok() && !heard_all_) return left;
    if (!left.ok()) {
      static_cast<void>(place_.discard(begun_));
      static_cast<void>(place_.discard(published_));
      return left;
    }
    static_cast<void>(place_.remove_all_but(manifest_));
    return left;
  }

 private:
  Result<void> find_room() {
    const Result<Room> own = look_for_room();
    Message said = own.ok() ? room_message(*own) : Message{.error = own.error()};
    if (ranks_.rank() == 0 && own.ok()) {
      said.attempt = env_.random64();
      said.text = text_of(encode_manifest(*request_.manifest));
    }
    const std::vector<Message> heard =
        HOLDFAST_TRY(say_and_hear(ranks_, said, options_.timeout));
    for (const Message& one : heard) rooms_.push_back(HOLDFAST_TRY(room_of(one)));
    manifest_ = HOLDFAST_TRY(
        decode_manifest(bytes_of(heard[0].text), "message of rank 0"));
    manifest_.attempt = heard[0].attempt;
    return check_room(rooms_, options_.reserve);
  }

  Result<Room> look_for_room() {
    HOLDFAST_TRY(request_.manifest);
    HOLDFAST_TRY(request_.objects);
    HOLDFAST_TRY(place_.make());
    plan_.emplace(HOLDFAST_TRY(WritePlan::create(request_.state->collection,
                                                 request_.state->rank)));
    return Room{.place = HOLDFAST_TRY(place_.identity()),
                .free = std::min(HOLDFAST_TRY(place_.free_bytes()), free_memory(env_)),
                .shard = plan_->shard_bytes()};
  }

  Result<LeftStep> write_and_publish() {
    Message said{.kind = "files"};
    SmallFiles small;
    if (const Result<void> written = write(said.files, small); !written.ok()) {
      said.error = written.error();
    }
    said.text = pack_files(small);
    HOLDFAST_TRY(hear_files(said));
    const Result<void> published = is_first_of_place() ? publish() : Result<void>();
    HOLDFAST_TRY(agree(ranks_, published, options_.timeout, &heard_all_));
    return result();
  }

  Result<void> publish() {
    published_ = HOLDFAST_TRY(
        place_.publish(begun_, manifest_, small_, shards_here_));
    return {};
  }

  // Writes this rank's files, and lists them.
  Result<void> write(std::vector<ManifestFile>& files, SmallFiles& small) {
    begun_ = HOLDFAST_TRY(place_.begin(manifest_.step, manifest_.attempt));
    const ShardIndex index = HOLDFAST_TRY(write_shard());
    const ShardFile& shard = index.files.front();
    files.push_back({.name = shard.name,
                     .bytes = shard.bytes,
                     .digest = crc_digest(combined_crc(shard))});
    small[plan_->index_name()] = encode_shard_index(index);
    HOLDFAST_TRY(add_objects(small, objects_name(ranks_.rank()),
                             request_.objects->of_rank));
    if (ranks_.rank() == 0) {
      HOLDFAST_TRY(add_objects(small, objects_name(), request_.objects->of_all));
    }
    for (const auto& [name, bytes] : small) {
      files.push_back({.name = name,
                       .bytes = std::ssize(bytes),
                       .digest = xxh3_digest(bytes)});
    }
    if (ranks_.rank() == 0 && request_.check_owner) return request_.check_owner();
    return {};
  }

  static Result<void> add_objects(SmallFiles& small, const std::string& name,
                                  const Object& objects) {
    if (objects.none()) return {};
    const std::string text = HOLDFAST_TRY(encode_object(objects).within(name));
    small[name] = copy_of(bytes_of(text));
    return {};
  }

  Result<ShardIndex> write_shard() {
    ShardPlan shard = plan_->shard(*request_.state);
    const std::vector<const Device*> devices = devices_of(shard.pieces());
    HOLDFAST_TRY(follow_stream(devices, request_.stream));
    StagingRing ring({.bytes = std::min(kRingBytes, plan_->shard_bytes()),
                      .block = kBlockBytes,
                      .pinner = devices.empty() ? nullptr
                                                : const_cast<Device*>(devices[0])});
    ShardWriter writer(ring, shard.shard());
    const std::jthread stager([&] { static_cast<void>(writer.stage()); });
    // Memory has no cache to write past.
    const WrittenShard written = HOLDFAST_TRY(writer.write(
        env_, begun_ / plan_->shard_name(), WriteOptions{.direct = false}));
    return shard.index(plan_->shard_name(), written);
  }

  // Hears the files of all ranks, of which the manifest and the small files are made.
  Result<void> hear_files(const Message& said) {
    const std::vector<Message> heard = HOLDFAST_TRY(
        say_and_hear(ranks_, said, options_.write_timeout, &heard_all_));
    const std::string& own_place = rooms_[static_cast<size_t>(ranks_.rank())].place;
    for (size_t rank = 0; rank < heard.size(); ++rank) {
      const Message& one = heard[rank];
      manifest_.files.insert(manifest_.files.end(), one.files.begin(), one.files.end());
      if (rooms_[rank].place == own_place && !one.files.empty()) {
        shards_here_.push_back(one.files.front().name);
      }
      for (auto& [name, bytes] : HOLDFAST_TRY(unpack_files(one.text))) {
        small_[name] = std::move(bytes);
      }
    }
    manifest_.world = ranks_.size();
    // Reads it once more, so that nothing is left that the next processes would refuse.
    manifest_ = HOLDFAST_TRY(decode_manifest(encode_manifest(manifest_), "manifest"));
    return {};
  }

  bool is_first_of_place() const {
    const auto own = static_cast<size_t>(ranks_.rank());
    return std::ranges::find(rooms_, rooms_[own].place, &Room::place) ==
           rooms_.begin() + static_cast<std::ptrdiff_t>(own);
  }

  Result<LeftStep> result() const {
    LeftStep left{.folder = place_.path()};
    std::map<std::string_view, int> places;
    for (const Room& room : rooms_) {
      left.bytes += room.shard;
      places[room.place] = 1;
    }
    left.places = static_cast<int>(places.size());
    return left;
  }

  const JobRanks ranks_;
  Env& env_;
  const SharedPlace& place_;
  const LeaveRequest& request_;
  const LeaveOptions options_;
  std::optional<WritePlan> plan_;
  std::vector<Room> rooms_;  // by rank
  Manifest manifest_;
  SmallFiles small_;  // of all ranks
  std::vector<std::string> shards_here_;  // of the ranks of this host
  Path begun_;        // the folder of the step on this host, before it is published
  Path published_;    // and after that, if this rank did it
  bool heard_all_ = true;
};

}  // namespace

Result<LeftStep> leave_in_memory(const JobRanks& ranks, const SharedPlace& place,
                                 const LeaveRequest& request,
                                 const LeaveOptions& options) {
  return Leaving(ranks, place, request, options).run();
}

}  // namespace holdfast

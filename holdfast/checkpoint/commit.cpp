#include "holdfast/checkpoint/commit.h"

#include <algorithm>

#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/parity_file.h"
#include "holdfast/checkpoint/wire_tags.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

// The objects of a save as JSON. A text is empty if there are no objects.
struct Encoded {
  std::string of_all;
  std::string of_rank;
};

// Encodes the objects of a save. The committing thread does it, because training would
// wait for save().
Result<Encoded> encode_objects(const SaveTask& task) {
  const auto encode = [](const Object& object, std::string_view what) {
    return object.none() ? Result<std::string>("") : encode_object(object).within(what);
  };
  const Result<SaveObjects>& objects = task.objects->wait();
  if (!objects.ok()) return objects.error();
  Encoded encoded;
  encoded.of_all = HOLDFAST_TRY(encode(objects->of_all, "objects"));
  encoded.of_rank = HOLDFAST_TRY(encode(objects->of_rank, "objects of the rank"));
  return encoded;
}

Message vote_of(const SaveTask& task, const Result<std::vector<ManifestFile>>& own) {
  const char* const kind = task.torn ? "torn" : task.unlinked ? "unlinked" : "vote";
  Message vote{.serial = task.serial, .kind = kind, .attempt = task.attempt};
  if (own.ok()) {
    vote.files = *own;
  } else {
    vote.error = own.error();
  }
  if (task.replicas != nullptr) vote.text = task.replicas->text();
  return vote;
}

// Refuses a message of another attempt. A serial alone does not tell them apart,
// because serials begin at 1 with every saver, while attempts are random.
Result<void> check_attempt(const Message& message, uint64_t attempt) {
  if (message.attempt == attempt) return {};
  return unavailable(
      "message of another rank: is about attempt {}; expected attempt {}",
      hex64(message.attempt), hex64(attempt));
}

// Returns the files of all ranks, or the error of a rank that voted no.
Result<std::vector<ManifestFile>> count_votes(std::vector<Message> votes,
                                              uint64_t attempt) {
  std::vector<ManifestFile> files;
  for (Message& vote : votes) {
    if (vote.error.has_value()) return *std::move(vote.error);
    HOLDFAST_TRY(check_attempt(vote, attempt));
    files.insert(files.end(), vote.files.begin(), vote.files.end());
  }
  return files;
}

// Returns how many bytes this rank writes: its shard without the pieces that an older
// step has.
int64_t own_bytes(const SaveTask& task) {
  return task.plan->shard_bytes() - task.shard.reused_bytes();
}

}  // namespace

Error torn_save(int64_t step, const std::vector<std::string>& names) {
  return unavailable("step {}: {} was written to before it was captured{}", step,
                     names.front(), names.size() == 1 ? "" : ", and others");
}

Committer::Committer(Run& run, Owner* owner, Transport* transport,
                     const SaverOptions& options, Strike strike)
    : run_(run),
      owner_(owner),
      options_(options),
      strike_(std::move(strike)),
      begin_(run.env(), transport, kBeginTag),
      vote_(run.env(), transport, kVoteTag) {
  if (owner != nullptr && options.keep.has_value()) {
    retention_.emplace(run, *owner, *options.keep, options.events);
  }
}

Result<Durable> Committer::commit(SaveTask& task, const Busy& busy) {
  Result<Durable> outcome = vote_.coordinator() ? lead(task, busy) : follow(task);
  if (!outcome.ok() && task.writer != nullptr) task.writer->cancel(outcome.error());
  was_full_ = !outcome.ok() && outcome.error().code() == ErrorCode::kNoSpace;
  return outcome;
}

Result<Durable> Committer::lead(SaveTask& task, const Busy& busy) {
  Result<Attempt> attempt = begin(task, busy);
  Message begun{.serial = task.serial,
                .kind = task.dropped ? "dropped" : "begin",
                .attempt = task.attempt};
  if (!attempt.ok()) begun.error = attempt.error();
  // A rank that this message does not reach does not vote, and a missing vote ends the
  // attempt at the deadline.
  static_cast<void>(begin_.tell_all(begun, options_.timeout));
  if (!attempt.ok()) return std::move(attempt).error();

  const Result<Path> committed = conclude(task, *attempt, write_files(task, *attempt));
  Message outcome{.serial = task.serial,
                  .kind = task.torn ? "torn" : "outcome",
                  .attempt = task.attempt};
  if (committed.ok()) {
    outcome.text = committed->filename().native();
  } else {
    outcome.error = committed.error();
    static_cast<void>(attempt->abandon(committed.error().message()));
  }
  static_cast<void>(vote_.tell_all(outcome, options_.timeout));
  if (!committed.ok()) return committed.error();
  return Durable{.folder = *committed, .tier = options_.tier};
}

Result<Attempt> Committer::begin(const SaveTask& task, const Busy& busy) {
  if (task.dropped) {
    return conflict("step {}: skipped, because a newer save took its place", task.step);
  }
  if (task.failed.has_value()) return *task.failed;
  HOLDFAST_TRY(run_.remake_if_gone(*owner_, options_.events));
  HOLDFAST_TRY(find_space(task, busy));
  return Attempt::begin(run_, *owner_, task.step, task.attempt, options_.events);
}

// Checks the free space, after retention has removed old steps if there is not enough.
// If the last attempt found the disk full only while it wrote, retention runs in any
// case.
Result<void> Committer::find_space(const SaveTask& task, const Busy& busy) {
  // When the save builds upon an older step, only each rank itself knows how much it
  // writes, so each checks the space for itself.
  const int64_t bytes = task.base.empty() ? task.plan->total_bytes() : own_bytes(task);
  const auto parity = static_cast<int64_t>(options_.parity * static_cast<double>(bytes));
  const auto look = [&] {
    return check_space(run_, stored_bytes(bytes + parity), options_.space_reserve);
  };
  const Result<void> space = look();
  if (!retention_.has_value() || (space.ok() && !was_full_)) return space;
  retain(true, [&] {
    std::set<std::string> names = busy();
    names.insert(task.base);
    return names;
  });
  return look();
}

// How small bytes get by compression is known only when they are written. The last full
// save tells how much to expect; before there is one, only the reserve is checked. If the
// disk is full in the end, the attempt fails and is removed.
int64_t Committer::stored_bytes(int64_t bytes) const {
  if (options_.compress == 0) return bytes;
  return static_cast<int64_t>(stored_share_ * static_cast<double>(bytes));
}

void Committer::note_stored(const SaveTask& task) {
  const int64_t bytes = task.plan->total_bytes();
  if (options_.compress == 0 || !task.base.empty() || bytes == 0) return;
  int64_t stored = 0;
  for (const ManifestFile& file : task.manifest.files) stored += file.bytes;
  stored_share_ = std::min(1.0, static_cast<double>(stored) / static_cast<double>(bytes));
}

Result<Path> Committer::conclude(SaveTask& task, Attempt& attempt,
                                 const Result<std::vector<ManifestFile>>& own) {
  std::vector<Message> votes =
      vote_.collect(vote_of(task, own), options_.write_timeout);
  for (const Message& vote : votes) {
    task.unlinked |= vote.kind == "unlinked";
    task.torn |= vote.kind == "torn";
  }
  // If the save is torn on a rank, its digests are of changed tensors, so they say
  // nothing about the replicas.
  if (!task.torn) HOLDFAST_TRY(check_replicas(task, votes));
  task.manifest.files = HOLDFAST_TRY(count_votes(std::move(votes), task.attempt));
  task.manifest.world = vote_.size();
  Result<Path> committed = attempt.commit(task.manifest);
  if (committed.ok()) note_stored(task);
  return committed;
}

// Drops the save if replicas differ. Once an earlier save has shown a difference, drops
// this one too, even if its digests are equal, because they cover another part of the
// tensors.
Result<void> Committer::check_replicas(SaveTask& task, std::span<const Message> votes) {
  std::vector<std::string> texts;
  for (const Message& vote : votes) texts.push_back(vote.text);
  const bool trusted = task.serial >= trusted_from_;
  const auto ranks = find_difference(texts);
  if (trusted && !ranks.has_value()) return {};
  task.torn = true;
  if (trusted) trusted_from_ = kNone;
  if (!ranks.has_value()) {
    return unavailable(
        "step {}: tensors differ that ranks had in common; expected equal replicas",
        task.step);
  }
  return unavailable(
      "step {}: tensors differ that rank {} and rank {} had in common; expected equal "
      "replicas",
      task.step, ranks->first, ranks->second);
}

Result<Durable> Committer::follow(SaveTask& task) {
  // Rank 0 may still be writing the save before this one.
  const Message begun = HOLDFAST_TRY(begin_.hear(task.serial, options_.write_timeout));
  HOLDFAST_TRY(check_attempt(begun, task.attempt));
  task.dropped = begun.kind == "dropped";
  task.told = begun.error.has_value();
  if (task.told) return *begun.error;
  Result<std::vector<ManifestFile>> own = std::vector<ManifestFile>();
  if (task.failed.has_value()) {
    own = *task.failed;
  } else {
    own = join_and_write(task);
  }
  // A vote that could not be sent in time may still arrive, so this rank asks for the
  // outcome in any case.
  static_cast<void>(vote_.report(vote_of(task, own), options_.timeout));
  return learn(task);
}

Result<std::vector<ManifestFile>> Committer::join_and_write(SaveTask& task) {
  Attempt attempt = HOLDFAST_TRY(Attempt::join(run_, task.step, task.attempt));
  // For a full save rank 0 has already checked that the shards of all ranks fit.
  const Result<void> room =
      task.base.empty() ? Result<void>()
                        : check_space(run_, stored_bytes(own_bytes(task)),
                                      options_.space_reserve);
  if (!room.ok()) {
    task.writer->cancel(room.error());
    return room.error();
  }
  return write_files(task, attempt);
}

Result<Durable> Committer::learn(SaveTask& task) {
  Result<Message> told = vote_.hear(task.serial, options_.write_timeout);
  if (told.ok()) {
    if (Result<void> own = check_attempt(*told, task.attempt); !own.ok()) {
      told = own.error();
    }
  }
  task.torn |= told.ok() && told->kind == "torn";
  task.told = told.ok() && told->error.has_value();
  if (task.told) return *told->error;
  if (told.ok())
    return Durable{.folder = run_.path() / told->text, .tier = options_.tier};
  const Result<Step> step = run_.committed(task.step, task.attempt);
  if (step.ok()) return Durable{.folder = step->folder, .tier = options_.tier};
  return unavailable("step {}: whether it was committed is unknown: {}", task.step,
                     told.error().message());
}

Result<std::vector<ManifestFile>> Committer::write_files(SaveTask& task,
                                                         Attempt& attempt) {
  const Result<Encoded> objects = encode_objects(task);
  if (!objects.ok()) {
    task.writer->cancel(objects.error());
    return objects.error();
  }
  std::vector<ManifestFile> files;
  const WrittenShard written = HOLDFAST_TRY(write_shard(task, attempt, files));
  HOLDFAST_TRY(link_shards(task, attempt, files));
  const ShardIndex& index =
      task.index.emplace(task.shard.index(task.plan->shard_name(), written));
  if (options_.read_back) HOLDFAST_TRY(read_back(attempt, index.files.front()));
  for (const ShardFile& shard : index.files) {
    files.push_back({.name = shard.name,
                     .bytes = shard.bytes,
                     .digest = crc_digest(combined_crc(shard))});
  }
  const auto put = [&](const std::string& name, ByteView bytes) -> Result<void> {
    if (bytes.empty()) return {};
    files.push_back(HOLDFAST_TRY(attempt.put_file(name, bytes)));
    return {};
  };
  HOLDFAST_TRY(put(task.plan->index_name(), encode_shard_index(index)));
  HOLDFAST_TRY(put(objects_name(vote_.rank()), bytes_of(objects->of_rank)));
  if (vote_.coordinator()) HOLDFAST_TRY(put(objects_name(), bytes_of(objects->of_all)));
  HOLDFAST_TRY(attempt.sync());
  // The files are complete, but the rank votes yes only if the tensors were captured
  // before they changed.
  if (task.guard != nullptr) {
    Result<void> settled = check_guard(task);
    task.torn = !settled.ok();
    HOLDFAST_TRY(std::move(settled));
  }
  return files;
}

// Writes the shard, and its parity if the run has parity, which is added to `files`.
Result<WrittenShard> Committer::write_shard(SaveTask& task, const Attempt& attempt,
                                            std::vector<ManifestFile>& files) {
  Env& env = run_.env();
  const Instant start = env.now();
  const std::string& name = task.plan->shard_name();
  WriteOptions options{.direct = options_.direct,
                       .pack_level = options_.compress,
                       .strike = strike_};
  std::unique_ptr<ParityFile> parity;
  if (options_.parity != 0 && options_.compress == 0) {
    Result<std::unique_ptr<ParityFile>> made =
        ParityFile::create(env, attempt.folder(), name, options_.parity,
                           task.shard.shard().bytes());
    if (!made.ok()) {
      task.writer->cancel(made.error());
      return made.error();
    }
    parity = *std::move(made);
    options.observe = [&](ByteView bytes) { return parity->add(bytes); };
  }
  const WrittenShard written =
      HOLDFAST_TRY(task.writer->write(env, attempt.folder() / name, options));
  tell_written(task, written, start);
  if (parity != nullptr) files.push_back(HOLDFAST_TRY(parity->finish()));
  // The size of a compressed shard is known only now.
  if (options_.parity != 0 && parity == nullptr) {
    files.push_back(
        HOLDFAST_TRY(write_parity(env, attempt.folder(), name, options_.parity)));
  }
  return written;
}

Result<void> Committer::check_guard(SaveTask& task) {
  HOLDFAST_TRY(task.guard->verdict());
  // The save is staged and settled, so the next save may use its memory on the devices.
  task.shot.reset();
  task.torn_names = task.shard.names(HOLDFAST_TRY(task.guard->probed()), {});
  if (task.torn_names.empty()) return {};
  return torn_save(task.step, task.torn_names);
}

// Links the older shards, with their parity, into the attempt. A failure becomes
// kUnavailable, an error that may pass, because the next save is a full one and needs no
// links.
Result<void> Committer::link_shards(SaveTask& task, const Attempt& attempt,
                                    std::vector<ManifestFile>& files) {
  Env& env = run_.env();
  const auto link_one = [&](const ReusableFile& link) -> Result<void> {
    HOLDFAST_TRY(env.link(link.path, attempt.folder() / link.file.name));
    const auto parity = HOLDFAST_TRY(link_parity(env, link.path, attempt.folder(),
                                                 link.file.name, options_.parity));
    if (parity) files.push_back(*parity);
    return {};
  };
  for (const ReusableFile* link : task.shard.links()) {
    const Result<void> linked = link_one(*link);
    if (linked.ok()) continue;
    task.unlinked = true;
    return linked.error().as(ErrorCode::kUnavailable);
  }
  return {};
}

void Committer::tell_written(const SaveTask& task, const WrittenShard& written,
                             Instant start) {
  if (options_.events == nullptr) return;
  const std::chrono::duration<double> took = run_.env().now() - start;
  emit(*options_.events, run_.env(),
       SaveWritten{.step = task.step,
                   .bytes = written.bytes,
                   .stage = written.times.stage,
                   .digest = written.times.digest,
                   .disk = written.times.disk,
                   .sync = written.times.sync,
                   .seconds = took.count()});
}

Result<void> Committer::read_back(const Attempt& attempt, const ShardFile& file) {
  const Path path = attempt.folder() / file.name;
  return read_all_chunks(run_.env(), path, file, [&](const FoundChunk& found) {
    return check_chunk(path, file, found);
  });
}

// Applies retention. A failure is only an event, because the next pass tries again to
// remove the same checkpoints.
void Committer::retain(bool ahead, const Busy& busy) {
  if (!retention_.has_value()) return;
  std::set<StepName> spared;
  for (const std::string& name : busy()) {
    if (const auto step = parse_step_name(name)) spared.insert(*step);
  }
  const Result<std::vector<StepName>> removed =
      ahead ? retention_->run_ahead(spared) : retention_->run(spared);
  if (removed.ok() || options_.events == nullptr) return;
  emit(*options_.events, run_.env(),
       RetentionFailed{.reason = removed.error().message()});
}

}  // namespace holdfast

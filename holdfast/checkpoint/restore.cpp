#include "holdfast/checkpoint/restore.h"

#include <algorithm>
#include <map>

#include "holdfast/checkpoint/commit.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/fetch.h"
#include "holdfast/checkpoint/range_check.h"
#include "holdfast/checkpoint/wire_tags.h"
#include "holdfast/env/patient_env.h"

namespace holdfast {
namespace {

// How often rank 0 lists the steps again because retention removed those it had found.
constexpr int kLooks = 20;

// True for errors after which the next step is tried: damage, and files that have
// vanished.
bool passes_over(const Error& error) {
  return error.code() == ErrorCode::kCorrupt || is_missing(error);
}

class Restore {
 public:
  Restore(Env& env, const Path& run, const StateFor& into, Transport* transport,
          const RestoreOptions& options)
      : env_(env),
        patient_(env),
        path_(run),
        into_(into),
        options_(options),
        channel_(env, transport, kRestoreTag),
        opens_(env, transport, kReadableTag) {}

  // Rank 0's part. If retention removes a step while it is read, that is no damage: a
  // newer step exists by then, so the steps are listed again.
  Result<RestoredState> lead() {
    for (int look = 1;; ++look) {
      skipped_.clear();
      const Result<std::vector<Candidate>> all = candidates();
      if (!all.ok()) return give_up(all.error());
      FetchTrouble trouble;
      for (const Candidate& candidate : *all) {
        if (trouble.forbids(candidate)) break;
        Result<Path> folder = bring(candidate);
        if (!folder.ok()) {
          trouble.note(path_, candidate, folder.error(), skipped_);
          continue;
        }
        const Result<bool> whole = is_whole(*folder);
        if (!whole.ok()) return give_up(whole.error());
        if (!*whole) continue;
        Result<RestoredState> restored = try_step(*folder);
        if (restored.ok() && candidate.tier != nullptr) {
          restored->tier = candidate.tier->name();
        }
        if (restored.ok() || !passes_over(restored.error())) return restored;
        skipped_.push_back({folder->filename().native(), restored.error()});
      }
      if (trouble.error().has_value()) return give_up(*trouble.error());
      if (!any_vanished(*all)) return give_up(nothing_left());
      if (look == kLooks) {
        return give_up(unavailable(
            "{}: steps are removed faster than they are read; expected a longer keep",
            path_.native()));
      }
    }
  }

  // The part of the other ranks.
  Result<RestoredState> follow() {
    while (true) {
      const Message chosen =
          HOLDFAST_TRY(channel_.hear(++serial_, options_.read_within));
      if (chosen.error.has_value()) return *chosen.error;
      const Result<Opened> opened = open(path_ / chosen.text);
      if (!opened.ok()) {
        if (passes_over(opened.error())) continue;
        return opened.error();
      }
      Result<RestoredState> read = read_step(*opened);
      HOLDFAST_TRY(channel_.report(report_of(read), options_.timeout));
      const Message verdict =
          HOLDFAST_TRY(channel_.hear(++serial_, options_.read_within));
      if (verdict.kind == "next") continue;
      if (verdict.error.has_value()) return *verdict.error;
      if (read.ok()) read->unverified = decode_names(verdict.text);
      return read;
    }
  }

 private:
  using Candidate = Offer;

  // A step whose small files have been read.
  struct Opened {
    Path folder;
    StepFiles step;
    Object objects;
    Object own;  // this rank's objects
  };

  // Lists the steps of the run directory and of the tiers, newest first. If both have a
  // step, the one in the run directory comes first.
  Result<std::vector<Candidate>> candidates() {
    std::string id;
    std::vector<Candidate> all = HOLDFAST_TRY(own_steps(id));
    offers_ = HOLDFAST_TRY(ask_tiers(options_.tiers, id));
    all.insert(all.end(), offers_.steps.begin(), offers_.steps.end());
    const std::vector<SkippedStep> skipped = offers_.skipped();
    skipped_.insert(skipped_.end(), skipped.begin(), skipped.end());
    std::erase_if(all, [&](const Candidate& candidate) {
      return options_.step.has_value() &&
             candidate.step.manifest.step != *options_.step;
    });
    std::ranges::stable_sort(all, std::greater(), [](const Candidate& candidate) {
      return age_of(candidate.step.manifest);
    });
    return all;
  }

  // Lists the steps of the run directory, and sets `id` to its id if the directory
  // exists.
  Result<std::vector<Candidate>> own_steps(std::string& id) {
    const Result<Run> run = Run::open(patient_, path_);
    std::vector<Candidate> own;
    if (!run.ok()) {
      // A run directory that does not exist is made when a step is copied from a tier.
      if (run.error().code() == ErrorCode::kNotFound && !options_.tiers.empty())
        return own;
      return run.error();
    }
    id = run->id();
    StepList list = HOLDFAST_TRY(run->steps());
    for (SkippedStep& skipped : list.skipped) {
      if (is_wanted(skipped.folder) && cannot_tell(skipped.error)) {
        return skipped.error;
      }
      skipped_.push_back(std::move(skipped));
    }
    for (Step& step : list.steps) {
      own.push_back({.step = {.id = step.folder.filename().native(),
                              .manifest = std::move(step.manifest),
                              .manifest_bytes = {}}});
    }
    return own;
  }

  bool is_wanted(const std::string& folder) const {
    const std::optional<StepName> name = parse_step_name(folder);
    return !options_.step.has_value() || (name && name->step == *options_.step);
  }

  // Returns the step's folder in the run directory. Copies the step there if only a
  // tier has it.
  Result<Path> bring(const Candidate& candidate) {
    if (candidate.tier == nullptr) return path_ / candidate.step.id;
    return fetch_step(env_, path_, *candidate.tier, candidate.step, options_.events);
  }

  bool any_vanished(const std::vector<Candidate>& candidates) const {
    return std::ranges::any_of(candidates, [&](const Candidate& candidate) {
      if (candidate.tier != nullptr) return false;
      const Result<FileInfo> info = env_.info(path_ / candidate.step.id);
      return !info.ok() && is_missing(info.error());
    });
  }

  // True if the step is whole. Fails if the error does not say whether the step is
  // damaged.
  Result<bool> is_whole(const Path& folder) {
    const Depth depth = options_.verify_all ? Depth::kFull : Depth::kFast;
    Result<StepReport> report = check_step(env_, folder, depth);
    if (report.ok() && report->whole()) return true;
    if (!report.ok() && cannot_tell(report.error())) return report.error();
    skipped_.push_back(
        {folder.filename().native(), report.ok() ? report->error() : report.error()});
    return false;
  }

  Result<RestoredState> try_step(const Path& folder) {
    const Result<void> told = channel_.tell_all(
        {.serial = ++serial_, .kind = "read", .text = folder.filename().native()},
        options_.timeout);
    // The ranks that got the message wait for the next one, so tell them of the
    // failure.
    if (!told.ok()) return give_up(told.error());
    const Opened opened = HOLDFAST_TRY(open(folder));
    touched_ = true;
    Result<RestoredState> read = read_step(opened);
    const std::vector<Message> reports =
        channel_.collect(report_of(read), options_.read_within);
    const Result<std::vector<std::string>> unverified = judge(reports);
    Message verdict{.serial = ++serial_, .kind = "done"};
    if (unverified.ok()) {
      verdict.text = encode_names(*unverified);
    } else if (passes_over(unverified.error())) {
      verdict.kind = "next";
    } else {
      verdict.error = unverified.error();
    }
    if (Result<void> judged = channel_.tell_all(verdict, options_.timeout);
        !judged.ok()) {
      return give_up(judged.error());
    }
    if (!unverified.ok()) return unverified.error();
    read->unverified = *unverified;
    read->skipped = std::move(skipped_);
    return read;
  }

  // Opens a step on all ranks. If one rank fails, all do.
  Result<Opened> open(const Path& folder) {
    Result<Opened> opened = open_here(folder);
    const Result<void> own = opened.ok() ? Result<void>() : opened.error();
    HOLDFAST_TRY(opens_.agree(own, options_.timeout));
    return opened;
  }

  // Reads the small files of a step now. The shards stay readable once read_pieces()
  // has opened them, even if retention removes the step.
  Result<Opened> open_here(const Path& folder) {
    StepFiles step = HOLDFAST_TRY(open_step(patient_, folder));
    Object objects = HOLDFAST_TRY(read_objects(patient_, step));
    const bool same_ranks = step.manifest.world == channel_.size();
    Object own = same_ranks
                     ? HOLDFAST_TRY(read_objects(patient_, step, channel_.rank()))
                     : Object();
    return Opened{folder, std::move(step), std::move(objects), std::move(own)};
  }

  Result<RestoredState> read_step(const Opened& opened) {
    const StepFiles& step = opened.step;
    const LocalState& into = *HOLDFAST_TRY(into_(step));
    HOLDFAST_TRY(follow_stream(devices_of(into.pieces), options_.stream));
    PiecesRead filled =
        HOLDFAST_TRY(read_pieces(patient_, step, into, {.threads = 2, .in_flight = 4}));
    ranges_ = std::move(filled.by_range);
    seals_ = channel_.rank() == 0 ? seals_of_pieces(step) : PieceSeals();
    tensors_.assign(step.collection.tensors().begin(), step.collection.tensors().end());
    return RestoredState{.step = step.manifest.step,
                         .folder = opened.folder,
                         .tier = {},
                         .manifest = step.manifest,
                         .objects = opened.objects,
                         .rank_objects = opened.own,
                         .skipped = {},
                         .unused = unused_tensors(step, into),
                         .unverified = {},
                         .mended = std::move(filled.mended),
                         .in_memory = false,
                         .needed = filled.needed,
                         .read = filled.read};
  }

  Message report_of(const Result<RestoredState>& read) const {
    Message report{.serial = serial_, .kind = "report"};
    if (!read.ok()) report.error = read.error();
    if (read.ok()) report.text = encode_ranges(ranges_);
    return report;
  }

  // Returns the names of tensors that cannot be checked, or the error of a rank. An
  // error that makes all ranks try an older step counts before one that ends the
  // restore, because the damage that one rank found may be the cause of another rank's
  // error.
  Result<std::vector<std::string>> judge(const std::vector<Message>& reports) const {
    std::optional<Error> failure;
    for (const Message& report : reports) {
      if (!report.error.has_value()) continue;
      if (!failure.has_value() || passes_over(*report.error)) failure = report.error;
    }
    if (failure.has_value()) return *failure;
    std::vector<RangeRead> ranges;
    for (const Message& report : reports) {
      for (const RangeRead& range :
           HOLDFAST_TRY(decode_ranges(report.text, tensors_))) {
        ranges.push_back(range);
      }
    }
    return check_ranges(ranges, tensors_, seals_);
  }

  Error nothing_left() const {
    const auto why = why_not_anew(path_, offers_, options_.allow_unreachable_tiers);
    const bool only_tiers = skipped_.size() == offers_.skipped().size();
    if (why.has_value() && (only_tiers || !is_damage(*why))) {
      return Error(why->code(), why->message() + std::string(state_of_tensors()));
    }
    if (only_tiers && options_.step.has_value()) {
      return not_found("{}: has no step {}", path_.native(), *options_.step);
    }
    if (only_tiers) return not_found("{}: has no step yet", path_.native());
    return corrupt("{}: no step is whole; the newest, {}: {}{}", path_.native(),
                   skipped_.front().folder, skipped_.front().error.message(),
                   state_of_tensors());
  }

  std::string_view state_of_tensors() const {
    return touched_ ? " (the tensors are undefined now)" : "";
  }

  // Ends the restore on all ranks with this error.
  Result<RestoredState> give_up(const Error& error) {
    static_cast<void>(channel_.tell_all(
        {.serial = ++serial_, .kind = "end", .error = error}, options_.timeout));
    return error;
  }

  Env& env_;
  PatientEnv patient_;  // repeats failed reads; all files of a step are read through it
  const Path path_;
  const StateFor& into_;
  const RestoreOptions& options_;
  Channel channel_;
  Channel opens_;
  int64_t serial_ = 0;
  bool touched_ = false;  // reading has begun, so tensors may have been overwritten
  Offers offers_;         // what the tiers offered when they were last asked
  std::vector<SkippedStep> skipped_;
  // These three belong to the step that was read last.
  std::vector<RangeRead> ranges_;
  PieceSeals seals_;  // on rank 0 only
  std::vector<Tensor> tensors_;
};

}  // namespace

Result<RestoredState> restore(Env& env, const Path& run, const LocalState& into,
                              Transport* transport, const RestoreOptions& options) {
  const auto always = [&](const StepFiles&) {
    return Result<const LocalState*>(&into);
  };
  return restore(env, run, always, transport, options);
}

Result<RestoredState> restore(Env& env, const Path& run, const StateFor& into,
                              Transport* transport, const RestoreOptions& options) {
  const Instant start = env.now();
  Restore restore(env, run, into, transport, options);
  const bool leads = transport == nullptr || transport->rank() == 0;
  RestoredState state = HOLDFAST_TRY(leads ? restore.lead() : restore.follow());
  if (options.events != nullptr) {
    emit(*options.events, env,
         Restored{.step = state.step,
                  .folder = state.folder.filename().native(),
                  .bytes = state.needed,
                  .skipped = static_cast<int64_t>(state.skipped.size()),
                  .seconds = std::chrono::duration<double>(env.now() - start).count()});
  }
  return state;
}

}  // namespace holdfast

// `holdfast mount`: shows the share of each worker in a corpus as files.
#include "holdfast/dataset/mount.h"

#include <fmt/ostream.h>

#include <memory>

#include "holdfast/base/number_text.h"
#include "holdfast/cli/corpus_options.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/text.h"
#include "holdfast/inspect/training_objects.h"

namespace holdfast {
namespace {

constexpr const char* kMountExample = R"(
Examples:
  holdfast mount c4/*.jsonl /mnt/d --batch 256
  holdfast mount c4/*.jsonl /mnt/d --batch 256 --run runs/gpt
  cat /mnt/d/from-000000000000-of-3/worker-1/part-*.jsonl | ./train

The last argument is an empty folder. In it, from-C-of-N has the rest of the epoch from
position C on, for N workers: the files of worker-0, worker-1, ... are their shares of
each batch, in the order that holdfast.data.loader has. Every C and N can be opened;
nothing is stored. list.txt names the parts with the positions that they cover, and where
the next epoch begins. With --run, current-of-N leads to the position of the newest step
of the run, whose seed is taken, too.

It runs until the folder is unmounted (umount, fusermount3 -u), Ctrl-C or SIGTERM. It needs
libfuse3 and /dev/fuse. It is for programs that read files; a PyTorch job uses
holdfast.data.Files, whose loader takes the position from the checkpoint itself.)";

struct MountArguments {
  CorpusArguments corpus;
  std::string run, last;
  int64_t batch = 0, seed = 0;
  bool no_shuffle = false;
};

// What the loader of a run has saved.
struct LoaderState {
  int64_t cursor = 0;
  int64_t samples = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  std::string fingerprint{};
};

std::optional<uint64_t> unsigned_in(const Object* object) {
  if (object == nullptr) return std::nullopt;
  if (const auto* number = object->as<int64_t>()) return static_cast<uint64_t>(*number);
  const auto* big = object->as<Object::BigInteger>();
  return big == nullptr ? std::nullopt : number_in<uint64_t>(big->decimal);
}

// The state of a holdfast.data.loader, or nullopt if it is that of another loader.
std::optional<LoaderState> loader_state(const Object& object) {
  const auto cursor = unsigned_in(find_key(object, "cursor"));
  const auto samples = unsigned_in(find_key(object, "samples"));
  const auto seed = unsigned_in(find_key(object, "seed"));
  const Object* const shuffle = find_key(object, "shuffle");
  const Object* const print = find_key(object, "fingerprint");
  const bool is_one = cursor && *cursor <= INT64_MAX && samples && seed && shuffle &&
                      shuffle->as<bool>() && print && print->as<std::string>();
  if (!is_one) return std::nullopt;
  return LoaderState{.cursor = static_cast<int64_t>(*cursor),
                     .samples = static_cast<int64_t>(*samples),
                     .seed = *seed,
                     .shuffle = *shuffle->as<bool>(),
                     .fingerprint = *print->as<std::string>()};
}

// The loaders of a run's newest step: one, or several by name.
std::vector<LoaderState> loader_states(const Object& objects) {
  const Object* const things = find_key(objects, "things");
  const Object* const data = things == nullptr ? nullptr : find_key(*things, "data");
  std::vector<LoaderState> found;
  if (data == nullptr) return found;
  if (auto one = loader_state(*data)) found.push_back(std::move(*one));
  const auto* const several = data->as<Object::Dict>();
  if (!found.empty() || several == nullptr) return found;
  for (const auto& [name, value] : several->items) {
    if (auto one = loader_state(value)) found.push_back(std::move(*one));
  }
  return found;
}

// The state of the run's loader over this corpus.
Result<LoaderState> read_state(Env& env, const std::string& run, const Corpus& corpus) {
  const OpenedAny opened = HOLDFAST_TRY(open_any(env, run));
  const std::vector<LoaderState> states = loader_states(opened.contents.objects);
  if (states.empty()) {
    return not_found("{}: has no state of a holdfast.data.loader; expected one that a "
                     "Checkpointer saved as data=",
                     run);
  }
  for (const LoaderState& state : states) {
    if (state.fingerprint == corpus.fingerprint()) return state;
  }
  return invalid("{}: the training reads data with the fingerprint {}; these files have {}; "
                 "expected the same files, kind and context",
                 run, states.front().fingerprint, corpus.fingerprint());
}

Result<EpochEnd> parse_end(const std::string& word) {
  if (word.empty() || word == "short") return EpochEnd::kShort;
  if (word == "drop") return EpochEnd::kDrop;
  if (word == "join") return EpochEnd::kJoin;
  return invalid("--last: \"{}\"; expected short, drop or join", word);
}

// A new folder, or one that is there and empty.
Result<void> prepare_folder(const Context& context, const Path& at) {
  if (HOLDFAST_TRY(remove_dead_mount(at)) && !context.quiet) {
    fmt::print(context.err, "holdfast: {}: unmounted what a killed program left there\n",
               printable(at.native()));
  }
  if (!context.env.info(at).ok()) return context.env.create_folder(at);
  if (HOLDFAST_TRY(context.env.list(at)).empty()) return {};
  return conflict("{}: is not empty; expected an empty folder to mount at", at.native());
}

Result<std::unique_ptr<MountTree>> make_tree(const Context& context,
                                             const MountArguments& arguments,
                                             const Corpus& corpus) {
  if (arguments.seed < 0) {
    return invalid("--seed: {}; expected 0 or more, below 2^63", arguments.seed);
  }
  SampleOptions order{.seed = static_cast<uint64_t>(arguments.seed),
                      .batch = arguments.batch,
                      .shuffle = !arguments.no_shuffle,
                      .end = HOLDFAST_TRY(parse_end(arguments.last))};
  if (arguments.run.empty()) return MountTree::create(corpus, order, {});
  const LoaderState state = HOLDFAST_TRY(read_state(context.env, arguments.run, corpus));
  order.seed = state.seed;
  order.shuffle = state.shuffle;
  const auto current = [&env = context.env, run = arguments.run,
                        &corpus]() -> Result<int64_t> {
    return HOLDFAST_TRY(read_state(env, run, corpus)).cursor;
  };
  return MountTree::create(corpus, order, current);
}

void tell_ready(const Context& context, const Corpus& corpus, const Path& at) {
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) {
      field("mounted", at.native());
      field("files", corpus.files().size());
      field("samples", corpus.samples());
      field("fingerprint", corpus.fingerprint());
    });
  } else {
    fmt::print(context.out, "{}: {} samples, files: {}, fingerprint {}; Ctrl-C unmounts\n",
               printable(at.native()), human_count(corpus.samples()),
               corpus.files().size(), corpus.fingerprint());
  }
  context.out.flush();
}

Result<ExitCode> mount_files(const Context& context, MountArguments arguments) {
  if (arguments.corpus.files.size() < 2) {
    return invalid("mount: {} argument; expected files, then the folder to mount at",
                   arguments.corpus.files.size());
  }
  const Path at = arguments.corpus.files.back();
  arguments.corpus.files.pop_back();
  const auto corpus = HOLDFAST_TRY(open_corpus(context, arguments.corpus));
  const auto tree = HOLDFAST_TRY(make_tree(context, arguments, *corpus));
  HOLDFAST_TRY(prepare_folder(context, at));
  const auto report = [&](const std::string& sentence) {
    fmt::print(context.err, "holdfast: {}\n", printable(sentence));
    context.err.flush();
  };
  const auto ready = [&] { tell_ready(context, *corpus, at); };
  HOLDFAST_TRY(mount_tree(*tree, {.at = at, .ready = ready, .report = report}));
  return ExitCode::kDone;
}

}  // namespace

Verb mount_verb() {
  auto arguments = std::make_shared<MountArguments>();  // shared with `run` below
  MountArguments& a = *arguments;
  std::vector<Option> options =
      a.corpus.options("Files of one kind or patterns of them, then an empty folder");
  options.push_back({"--batch", "Samples that all workers together take in a step", &a.batch,
                     true});
  options.push_back({"--run", "The run that current-of-N follows", &a.run});
  options.push_back({"--seed", "The seed of the order, if no run gives it", &a.seed});
  options.push_back({"--no-shuffle", "Keep the order of the files", &a.no_shuffle});
  options.push_back({"--last", "What becomes of an epoch's last batch: short, drop or join",
                     &a.last, false, {"short", "drop", "join"}});
  return {.name = "mount",
          .summary = "Show each worker's share of data files as files",
          .footer = kMountExample,
          .options = std::move(options),
          .run = [arguments](const Context& c) { return mount_files(c, *arguments); }};
}

}  // namespace holdfast

// `holdfast show`: shows what a checkpoint contains, and where.
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/flip_options.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/objects_text.h"
#include "holdfast/cli/text.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

constexpr const char* kShowExample = R"(
Examples:
  holdfast show runs/gpt                the newest whole step
  holdfast show runs/gpt@400 --tensors  step 400, tensor by tensor
  holdfast show model.pt --layout       which bytes of which file hold which box
  holdfast show model.keras --roles     what --roles and --layers of a campaign strike

PATH is a file or folder of a known format, the folder of a step, or a run directory.
RUN@STEP is a step of a run; if it was saved several times, the last one. A run may be in
an object store: s3://bucket/prefix. Of what was saved beside tensors only names and short
values are shown, unless --objects is given. Of long bytes the first 16 and the size are
shown, unless -v is given. --json has all of them.

--roles lists the role and the layer of each tensor, by which `holdfast inject` and
`holdfast campaign` choose. A role is known from the file (what it records, its graph of
objects, its config and groups), is given by --roles-from, or is guessed from the name of
the tensor. The number before a layer is the one that --layers takes.)";

struct ShowArguments {
  std::string path;
  std::string roles_from;
  bool roles = false;
  bool tensors = false;
  bool layout = false;
  bool objects = false;
};

void print_manifest(const Context& context, const Manifest& manifest) {
  Table table("ll");
  table.add({"step", std::to_string(manifest.step)});
  table.add({"saved", human_date(manifest.created)});
  table.add({"ranks", std::to_string(manifest.world)});
  if (!manifest.parallel.empty()) table.add({"parallel", printable(manifest.parallel)});
  if (!manifest.parent.empty()) table.add({"went on from", printable(manifest.parent)});
  for (const auto& [name, value] : manifest.metrics) {
    table.add({printable(name), human_number(value)});
  }
  for (const auto& [name, version] : manifest.software) {
    table.add({printable(name), printable(version)});
  }
  table.add({"run", printable(manifest.run)});
  table.add(
      {"term, sequence", fmt::format("{}, {}", manifest.epoch, manifest.sequence)});
  fmt::print(context.out, "{}", table.text());
}

void print_summary(const Context& context, const Collection& collection) {
  std::map<Dtype, std::pair<int64_t, int64_t>> by_dtype;  // tensors and bytes
  for (const Tensor& tensor : collection.tensors()) {
    by_dtype[tensor.dtype].first += 1;
    by_dtype[tensor.dtype].second += tensor.bytes();
  }
  fmt::print(context.out, "{} tensors, {}, in {} files\n",
             human_count(std::ssize(collection.tensors())),
             human_bytes(collection.bytes()), collection.layout().holders().size());
  for (const auto& [dtype, counts] : by_dtype) {
    fmt::print(context.out, "  {}: {} tensors, {}\n", name_of(dtype),
               human_count(counts.first), human_bytes(counts.second));
  }
}

std::string role_text(const TensorRole& role) {
  return fmt::format("{}{}", name_of(role.role),
                     role.origin == RoleOrigin::kGuessed ? " (guessed)" : "");
}

// How many tensors have each role, and how many of these roles are guessed.
void print_role_counts(const Context& context, const PathSummary& shown) {
  struct Count {
    int64_t tensors = 0, guessed = 0, bytes = 0;
  };
  std::map<Role, Count> counts;
  for (TensorId id = 0; id < shown.roles.size(); ++id) {
    Count& count = counts[shown.roles[id].role];
    count.tensors += 1;
    count.guessed += shown.roles[id].origin == RoleOrigin::kGuessed;
    count.bytes += shown.collection.tensor(id).bytes();
  }
  Table table("lrrr");
  table.add({"role", "tensors", "guessed", "size"});
  for (const auto& [role, count] : counts) {
    table.add({std::string(name_of(role)), human_count(count.tensors),
               human_count(count.guessed), human_bytes(count.bytes)});
  }
  fmt::print(context.out, "\n{}", table.text());
}

void print_roles(const Context& context, const PathSummary& shown) {
  const std::vector<std::string> layers = layers_of(shown.roles);
  Table table("lllrl");
  table.add({"tensor", "role", "from", "", "layer"});
  for (TensorId id = 0; id < shown.roles.size(); ++id) {
    const TensorRole& role = shown.roles[id];
    const auto found = std::ranges::lower_bound(layers, role.layer, NameOrder());
    const bool numbered = found != layers.end() && *found == role.layer;
    table.add({printable(shown.collection.tensor(id).name),
               std::string(name_of(role.role)), std::string(name_of(role.origin)),
               numbered ? std::to_string(found - layers.begin()) : "",
               printable(role.layer)});
  }
  fmt::print(context.out, "\n{}", table.text());
  print_role_counts(context, shown);
}

void print_tensors(const Context& context, const PathSummary& shown) {
  Table table("llrrll");
  table.add({"tensor", "dtype", "shape", "size", "role", "seal"});
  for (TensorId id = 0; id < shown.collection.tensors().size(); ++id) {
    const Tensor& tensor = shown.collection.tensor(id);
    table.add({printable(tensor.name), std::string(name_of(tensor.dtype)),
               to_string(tensor.shape), human_bytes(tensor.bytes()),
               role_text(shown.roles[id]), seal_text(shown, id).value_or("-")});
    for (const std::string& alias : tensor.aliases) {
      table.add({"  = " + printable(alias)});
    }
  }
  fmt::print(context.out, "\n{}", table.text());
}

void print_layout(const Context& context, const Collection& collection) {
  const Layout& layout = collection.layout();
  Table table("lllr");
  table.add({"tensor", "box", "file", "at byte"});
  for (TensorId id = 0; id < collection.tensors().size(); ++id) {
    const Tensor& tensor = collection.tensor(id);
    for (const Slice& slice : layout.slices(id)) {
      for (PieceId piece = slice.first; piece < slice.last; ++piece) {
        table.add({printable(tensor.name), to_string(slice.box),
                   printable(layout.holders()[layout.holder(piece)].name),
                   std::to_string(layout.map(piece, bytes_of(tensor.dtype)).offset)});
      }
    }
  }
  fmt::print(context.out, "\n{}", table.text());
}

void print_object(const Context& context, const std::string& label,
                  const Object& object) {
  if (object.none()) return;
  fmt::print(context.out, "\n{}: {}\n", label,
             printable(object_text(object, !context.verbose)));
}

void print_summary_of_objects(const Context& context, const PathSummary& shown) {
  Table table("ll");
  for (std::vector<std::string>& row : objects_summary(shown)) table.add(std::move(row));
  if (table.width() == 0) return;
  fmt::print(context.out, "\nbeside tensors (--objects prints all of it):\n{}",
             table.text());
}

void print_objects(const Context& context, const PathSummary& shown, bool all) {
  if (all) {
    print_object(context, "objects", shown.objects);
    for (const auto& [rank, object] : shown.rank_objects) {
      print_object(context, fmt::format("objects of rank {}", rank), object);
    }
  } else {
    print_summary_of_objects(context, shown);
  }
  for (const auto& [key, value] : shown.metadata) {
    fmt::print(context.out, "metadata: {}: {}\n", printable(key), printable(value));
  }
}

Result<ExitCode> show(const Context& context, const ShowArguments& arguments) {
  PathSummary shown = HOLDFAST_TRY(summarize_path(context.env, arguments.path));
  HOLDFAST_TRY(give_roles(
      HOLDFAST_TRY(read_role_map(context.env, arguments.roles_from)),
      shown.collection, shown.roles));
  if (context.json) {
    print_json(context.out, shown, arguments.layout);
    return ExitCode::kDone;
  }
  fmt::print(context.out, "{}: {}\n", printable(shown.found.path.native()),
             shown.found.step() ? "a step of a run" : shown.found.format->what);
  for (const SkippedStep& skipped : shown.found.skipped) {
    fmt::print(context.out, "skipped: {}: {}\n", printable(skipped.folder),
               printable(skipped.error.message()));
  }
  if (shown.manifest) print_manifest(context, *shown.manifest);
  print_summary(context, shown.collection);
  if (arguments.tensors) print_tensors(context, shown);
  if (arguments.roles || !arguments.roles_from.empty()) print_roles(context, shown);
  if (arguments.layout) print_layout(context, shown.collection);
  print_objects(context, shown, arguments.objects);
  for (const std::string& line : shown.left_out) {
    fmt::print(context.out, "left out: {}\n", printable(line));
  }
  return ExitCode::kDone;
}

// Takes the ranks from the names of the files. It does not count up to a number in the
// manifest, because a damaged or hostile manifest may claim any number.
std::vector<int> ranks_with_objects(const Manifest& manifest) {
  std::vector<int> ranks;
  for (const ManifestFile& file : manifest.files) {
    if (const auto rank = rank_of_objects(file.name)) ranks.push_back(*rank);
  }
  return ranks;
}

Result<PathSummary> summarize_file(Env& env, const Found& found) {
  Contents contents = HOLDFAST_TRY(open_found(env, found));
  return PathSummary{.found = found,
                     .collection = std::move(contents.collection),
                     .objects = std::move(contents.objects),
                     .metadata = std::move(contents.metadata),
                     .left_out = std::move(contents.left_out)};
}

Result<PathSummary> summarize_step(Env& env, const Found& found) {
  const StepFiles step = HOLDFAST_TRY(open_step(env, found.path));
  Object objects = HOLDFAST_TRY(read_objects(env, step));
  PathSummary shown{.found = found,
                    .collection = step.collection,
                    .objects = std::move(objects),
                    .manifest = step.manifest,
                    .seals = step.seals};
  for (const int rank : ranks_with_objects(step.manifest)) {
    shown.rank_objects.emplace(rank, HOLDFAST_TRY(read_objects(env, step, rank)));
  }
  return shown;
}

}  // namespace

std::optional<std::string> seal_text(const PathSummary& shown, TensorId id) {
  if (id >= shown.seals.size()) return std::nullopt;
  const Tensor& tensor = shown.collection.tensor(id);
  const Seal& seal = shown.seals[id];
  if (seal.bytes != static_cast<uint64_t>(tensor.bytes())) return std::nullopt;
  return print_seal(seal, tensor.dtype, tensor.shape);
}

Result<PathSummary> summarize_path(Env& env, const Path& path) {
  std::optional<PathSummary> shown;
  Found found = HOLDFAST_TRY(use_any(env, path, [&](const Found& one) -> Result<void> {
    shown =
        HOLDFAST_TRY(one.step() ? summarize_step(env, one) : summarize_file(env, one));
    return {};
  }));
  shown->found = std::move(found);
  shown->roles = find_roles({.collection = shown->collection,
                             .objects = shown->objects,
                             .metadata = shown->metadata,
                             .recorded = shown->found.step()});
  return *std::move(shown);
}

Verb show_verb() {
  auto arguments = std::make_shared<ShowArguments>();  // shared with `run` below
  ShowArguments& a = *arguments;
  return {
      .name = "show",
      .summary = "Show what a checkpoint or file contains, and where",
      .footer = kShowExample,
      .options = {{"PATH", "A file, a step, a run, or RUN@STEP", &a.path, true},
                  {"--tensors", "List every tensor: dtype, shape, size, role, seal",
                   &a.tensors},
                  {"--roles", "List the role and the layer of each tensor", &a.roles},
                  {"--roles-from", "Your own roles, as for inject and campaign",
                   &a.roles_from},
                  {"--layout", "List which file holds which box, and at which byte",
                   &a.layout},
                  {"--objects", "Print all that was saved beside tensors, as JSON", &a.objects}},
      .run = [arguments](const Context& c) { return show(c, *arguments); }};
}

}  // namespace holdfast

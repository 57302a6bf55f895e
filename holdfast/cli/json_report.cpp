#include "holdfast/cli/json_report.h"

#include <fmt/ostream.h>

#include <numeric>

#include "holdfast/cli/text.h"
#include "holdfast/state/object_json.h"
#include "holdfast/state/tensor_fields.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {

// Found by FieldWriter, by the types of the values. So they are in no namespace of this
// file.
static void put_members(FieldWriter& field, const SkippedStep& skipped) {
  field("folder", skipped.folder);
  field("code", name_of(skipped.error.code()));
  field("why", skipped.error.message());
}

static void put_members(FieldWriter& field, const OwnerView& owner) {
  const OwnerRecord& record = owner.record;
  field("host", record.who.host);
  field("pid", record.who.pid);
  field("job", text_or_null(record.who.job));
  field("epoch", record.epoch);
  field("since", human_date(record.since));
  field("live", !owner.dead);
  field("why_dead", owner.dead);
}

static void put_members(FieldWriter& field, const StepView& view) {
  const Manifest& manifest = view.step.manifest;
  field("folder", view.step.name.text());
  field("step", view.step.name.step);
  field("generation", view.step.name.generation);
  field("epoch", manifest.epoch);
  field("sequence", manifest.sequence);
  field("created", human_date(manifest.created));
  field("bytes", view.bytes);
  field("ranks", manifest.world);
  field("metrics", manifest.metrics);
  field("pinned", view.pinned);
  field("newest", view.newest);
  field("whole", !view.why_not);
  field("why", view.why_not ? text_or_null(view.why_not->message()) : std::nullopt);
}

static void put_members(FieldWriter& field, const RunView& run) {
  std::optional<std::string> newest;
  for (const StepView& view : run.steps) {
    if (view.newest) newest = view.step.name.text();
  }
  field("path", run.path.native());
  field("id", run.id);
  field.object_or_null("owner", run.owner);
  field("newest", newest);
  field.list("steps", run.steps);
  field.list("skipped", run.skipped);
  field("attempts", run.attempts);
}

static void put_members(FieldWriter& field, const Manifest& manifest) {
  field("step", manifest.step);
  field("run", manifest.run);
  field("epoch", manifest.epoch);
  field("sequence", manifest.sequence);
  field("attempt", hex64(manifest.attempt));
  field("ranks", manifest.world);
  field("parallel", text_or_null(manifest.parallel));
  field("parent", text_or_null(manifest.parent));
  field("created", human_date(manifest.created));
  field("software", manifest.software);
  field("metrics", manifest.metrics);
  field("files", manifest.files);
}

static void put_members(FieldWriter& field, const Damage& damage) {
  field("file", damage.file);
  field("tensors", damage.tensors);
  field("chunk", damage.chunk < 0 ? std::nullopt : std::optional(damage.chunk));
  field("offset", damage.offset);
  field("bytes", damage.bytes);
  field("what", damage.what);
}

static void put_members(FieldWriter& field, const TensorKind& kind) {
  field("dtype", kind.dtype);
  field("shape", kind.shape);
}

static void put_members(FieldWriter& field, const TensorDiff& tensor) {
  field("name", tensor.name);
  field("verdict", name_of(tensor.verdict));
  field.object_or_null("a", tensor.a);
  field.object_or_null("b", tensor.b);
  if (tensor.verdict != Verdict::kDiffers) return;
  field("elements", tensor.a->shape.elements());
  field("differing", tensor.differing);
  field("max_absolute", tensor.max_absolute);
  field("max_relative", tensor.max_relative);
  field("first", tensor.first);
}

namespace {

struct Piece {
  std::vector<std::pair<int64_t, int64_t>> box;
  std::string file;
  int64_t offset;
};

std::vector<Piece> pieces_of(const Collection& collection, TensorId id) {
  std::vector<Piece> pieces;
  const Layout& layout = collection.layout();
  const int64_t element = bytes_of(collection.tensor(id).dtype);
  for (const Slice& slice : layout.slices(id)) {
    std::vector<std::pair<int64_t, int64_t>> box;
    for (const Extent& extent : slice.box.extents()) box.emplace_back(extent.lo, extent.hi);
    for (PieceId piece = slice.first; piece < slice.last; ++piece) {
      pieces.push_back({box, layout.holders()[layout.holder(piece)].name,
                        layout.map(piece, element).offset});
    }
  }
  return pieces;
}

void put_tensor(FieldWriter& field, const PathSummary& shown, TensorId id, bool layout) {
  const Tensor& tensor = shown.collection.tensor(id);
  field("name", tensor.name);
  field("dtype", tensor.dtype);
  field("shape", tensor.shape);
  field("bytes", tensor.bytes());
  field("role", shown.roles[id].role);
  field("role_from", name_of(shown.roles[id].origin));
  field("layer", shown.roles[id].layer);
  field("aliases", tensor.aliases);
  field("seal", seal_text(shown, id));
  if (!layout) return;
  field.list("pieces", pieces_of(shown.collection, id),
             [](FieldWriter& each, const Piece& piece) {
               each("box", piece.box);
               each("file", piece.file);
               each("offset", piece.offset);
             });
}

// The typed JSON of object_json.h.
void put_object(FieldWriter& field, const std::string& key, const Object& object) {
  const Result<std::string> text = encode_object(object);
  if (text.ok()) return field.json(key, *text);
  field.object(key, [&](FieldWriter& instead) {
    instead("$error", text.error().message());
  });
}

}  // namespace

void put_members(FieldWriter& field, const FailedPath& failed) {
  field("path", failed.path);
  field("code", name_of(failed.error.code()));
  field("why", failed.error.message());
}

void put_members(FieldWriter& field, const Error& error, ExitCode exit) {
  field.object("error", [&](FieldWriter& each) {
    each("code", name_of(error.code()));
    each("message", error.message());
    each("exit", static_cast<int>(exit));
  });
}

void put_members(FieldWriter& field, std::span<const RunList> lists) {
  std::vector<RunView> runs;
  std::vector<SkippedStep> skipped;
  for (const RunList& list : lists) {
    runs.insert(runs.end(), list.runs.begin(), list.runs.end());
    skipped.insert(skipped.end(), list.skipped.begin(), list.skipped.end());
  }
  field.list("runs", runs);
  field.list("skipped", skipped);
}

void put_members(FieldWriter& field, const PathSummary& shown, bool layout) {
  std::vector<TensorId> tensors(shown.collection.tensors().size());
  std::iota(tensors.begin(), tensors.end(), TensorId{0});
  field("path", shown.found.path.native());
  field("kind", shown.found.kind());
  field.list("skipped", shown.found.skipped);
  field.object_or_null("manifest", shown.manifest);
  field("bytes", shown.collection.bytes());
  field.list("tensors", tensors, [&](FieldWriter& each, TensorId id) {
    put_tensor(each, shown, id, layout);
  });
  put_object(field, "objects", shown.objects);
  field.object("rank_objects", [&](FieldWriter& ranks) {
    for (const auto& [rank, object] : shown.rank_objects) {
      put_object(ranks, std::to_string(rank), object);
    }
  });
  field("metadata", shown.metadata);
  field("left_out", shown.left_out);
}

void put_members(FieldWriter& field, const Verified& verified) {
  field("path", verified.path.native());
  field("kind", verified.kind);
  field("whole", verified.whole());
  field("digests", verified.digests);
  field("bytes_read", verified.bytes_read);
  field.list("damage", verified.damage);
  field("extra", verified.extra);
}

void put_members(FieldWriter& field, const DiffReport& report) {
  field("equal", report.equal());
  field("bytes", report.bytes);
  field("objects", report.objects);
  field("left_out", report.left_out);
  field.list("tensors", report.tensors);
}

void put_members(FieldWriter& field, const GcResult& done) {
  std::vector<std::string> kept;
  for (const StepName& name : done.kept) kept.push_back(name.text());
  field.list("removed", done.removed, [](FieldWriter& each, const auto& removed) {
    each("folder", removed.name.text());
    each("bytes", removed.bytes);
  });
  field("kept", kept);
  field("swept", done.swept);
  field("memory", done.memory);
  field("failed", done.failed);
  field("in_use_by", done.in_use_by);
}

void print_written(const Context& context, const Written& done,
                   std::string_view notes_key, std::string_view before_note) {
  tell_skipped(context, done.from);
  if (context.json) {
    return print_json(context.out, [&](FieldWriter& field) {
      field("from", done.from.path.native());
      field("kind", done.from.kind());
      field("to", done.to.native());
      field("format", done.format);
      field("tensors", done.tensors);
      field("bytes", done.bytes);
      field(notes_key, done.notes);
      field.list("skipped", done.from.skipped);
    });
  }
  fmt::print(context.out, "{} ({}) -> {} ({}): {} tensors, {}\n",
             printable(done.from.path.native()), done.from.kind(),
             printable(done.to.native()), done.format, human_count(done.tensors),
             human_bytes(done.bytes));
  for (const std::string& note : done.notes) {
    fmt::print(context.out, "{}{}\n", before_note, printable(note));
  }
}

void put_members(FieldWriter& field, const ReshardPlan& plan, const std::string& to,
                 const std::optional<Resharded>& done) {
  field("from", plan.from.path.native());
  field("kind", plan.kind());
  field("to", to);
  field("format", plan.format);
  field("configuration", plan.whole ? "whole" : to_string(plan.parallel));
  field("rules", text_or_null(plan.rules));
  field("tensors", plan.files->tensors().size());
  field("bytes", plan.target_bytes());
  field("reads", plan.figures.moved);
  field("reads_bound", plan.figures.moved_bound);
  field("notes", plan.notes);
  field.list("skipped", plan.from.skipped);
  if (!done) return;
  field("folder", done->folder.native());
  field("files", done->files);
  field("kept", done->kept);
  field("moved", done->moved);
  field("seals_equal", done->seals);
}

}  // namespace holdfast

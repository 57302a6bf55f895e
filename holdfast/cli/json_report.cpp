#include "holdfast/cli/json_report.h"

#include "holdfast/base/json_document.h"
#include "holdfast/cli/json_print.h"
#include "holdfast/state/object_json.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

OrderedJson skipped_json(const std::vector<SkippedStep>& list) {
  OrderedJson all = OrderedJson::array();
  for (const SkippedStep& skipped : list) {
    all.push_back({{"folder", skipped.folder},
                   {"code", name_of(skipped.error.code())},
                   {"why", skipped.error.message()}});
  }
  return all;
}

OrderedJson metrics_json(const Manifest& manifest) {
  OrderedJson metrics = OrderedJson::object();
  for (const auto& [name, value] : manifest.metrics) metrics[name] = json_number(value);
  return metrics;
}

OrderedJson owner_json(const std::optional<OwnerView>& owner) {
  if (!owner) return OrderedJson();
  const OwnerRecord& record = owner->record;
  return {{"host", record.who.host},
          {"pid", record.who.pid},
          {"job", text_or_null(record.who.job)},
          {"epoch", record.epoch},
          {"since", human_date(record.since)},
          {"live", !owner->dead},
          {"why_dead", text_or_null(owner->dead.value_or(""))}};
}

OrderedJson step_json(const StepView& view) {
  const Manifest& manifest = view.step.manifest;
  return {{"folder", view.step.name.text()},
          {"step", view.step.name.step},
          {"generation", view.step.name.generation},
          {"epoch", manifest.epoch},
          {"sequence", manifest.sequence},
          {"created", human_date(manifest.created)},
          {"bytes", view.bytes},
          {"ranks", manifest.world},
          {"metrics", metrics_json(manifest)},
          {"pinned", view.pinned},
          {"newest", view.newest},
          {"whole", !view.why_not},
          {"why", view.why_not ? OrderedJson(view.why_not->message()) : OrderedJson()}};
}

OrderedJson run_json(const RunView& run) {
  OrderedJson steps = OrderedJson::array(), newest;
  for (const StepView& view : run.steps) {
    steps.push_back(step_json(view));
    if (view.newest) newest = view.step.name.text();
  }
  return {{"path", run.path.native()},
          {"id", run.id},
          {"owner", owner_json(run.owner)},
          {"newest", newest},
          {"steps", steps},
          {"skipped", skipped_json(run.skipped)},
          {"attempts", run.attempts}};
}

OrderedJson manifest_json(const Manifest& manifest) {
  OrderedJson files = OrderedJson::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"digest", file.digest}});
  }
  return {{"step", manifest.step},
          {"run", manifest.run},
          {"epoch", manifest.epoch},
          {"sequence", manifest.sequence},
          {"attempt", hex64(manifest.attempt)},
          {"ranks", manifest.world},
          {"parallel", text_or_null(manifest.parallel)},
          {"parent", text_or_null(manifest.parent)},
          {"created", human_date(manifest.created)},
          {"software", manifest.software},
          {"metrics", metrics_json(manifest)},
          {"files", files}};
}

OrderedJson pieces_json(const Collection& collection, TensorId id) {
  OrderedJson pieces = OrderedJson::array();
  const Layout& layout = collection.layout();
  const int64_t element = bytes_of(collection.tensor(id).dtype);
  for (const Slice& slice : layout.slices(id)) {
    OrderedJson box = OrderedJson::array();
    for (const Extent& extent : slice.box.extents())
      box.push_back({extent.lo, extent.hi});
    for (PieceId piece = slice.first; piece < slice.last; ++piece) {
      pieces.push_back({{"box", box},
                        {"file", layout.holders()[layout.holder(piece)].name},
                        {"offset", layout.map(piece, element).offset}});
    }
  }
  return pieces;
}

OrderedJson tensor_json(const PathSummary& shown, TensorId id, bool layout) {
  const Tensor& tensor = shown.collection.tensor(id);
  OrderedJson json{{"name", tensor.name},
                   {"dtype", name_of(tensor.dtype)},
                   {"shape", tensor.shape.sizes()},
                   {"bytes", tensor.bytes()},
                   {"role", name_of(shown.roles[id].role)},
                   {"role_from", name_of(shown.roles[id].origin)},
                   {"layer", shown.roles[id].layer},
                   {"aliases", tensor.aliases},
                   {"seal", text_or_null(seal_text(shown, id).value_or(""))}};
  if (layout) json["pieces"] = pieces_json(shown.collection, id);
  return json;
}

// The typed JSON of object_json.h.
OrderedJson object_json(const Object& object) {
  const Result<std::string> text = encode_object(object);
  if (!text.ok()) return {{"$error", text.error().message()}};
  JsonDocument<OrderedJson> document;
  (void)OrderedJson::sax_parse(*text, &document);
  return std::move(document).take();
}

OrderedJson damage_json(const Damage& damage) {
  return {{"file", damage.file},
          {"tensors", damage.tensors},
          {"chunk", damage.chunk < 0 ? OrderedJson() : OrderedJson(damage.chunk)},
          {"offset", damage.offset},
          {"bytes", damage.bytes},
          {"what", damage.what}};
}

OrderedJson kind_json(const std::optional<TensorKind>& kind) {
  if (!kind) return OrderedJson();
  return {{"dtype", name_of(kind->dtype)}, {"shape", kind->shape.sizes()}};
}

OrderedJson tensor_diff_json(const TensorDiff& tensor) {
  OrderedJson json{{"name", tensor.name},
                   {"verdict", name_of(tensor.verdict)},
                   {"a", kind_json(tensor.a)},
                   {"b", kind_json(tensor.b)}};
  if (tensor.verdict != Verdict::kDiffers) return json;
  json["elements"] = tensor.a->shape.elements();
  json["differing"] = tensor.differing;
  json["max_absolute"] = json_number(tensor.max_absolute);
  json["max_relative"] = json_number(tensor.max_relative);
  json["first"] = tensor.first;
  return json;
}

}  // namespace

OrderedJson errors_json(std::span<const FailedPath> failed) {
  OrderedJson all = OrderedJson::array();
  for (const auto& [path, error] : failed) {
    all.push_back(
        {{"path", path}, {"code", name_of(error.code())}, {"why", error.message()}});
  }
  return all;
}

std::string error_json(const Error& error, ExitCode exit) {
  return print_json({{"error",
                      {{"code", name_of(error.code())},
                       {"message", error.message()},
                       {"exit", static_cast<int>(exit)}}}});
}

std::string ls_json(std::span<const RunList> lists,
                    std::span<const FailedPath> failed) {
  OrderedJson runs = OrderedJson::array(), skipped = OrderedJson::array();
  for (const RunList& list_runs : lists) {
    for (const RunView& run : list_runs.runs) runs.push_back(run_json(run));
    for (const auto& entry : skipped_json(list_runs.skipped)) skipped.push_back(entry);
  }
  return print_json(
      {{"runs", runs}, {"skipped", skipped}, {"errors", errors_json(failed)}});
}

std::string show_json(const PathSummary& shown, bool layout) {
  OrderedJson tensors = OrderedJson::array(), of_ranks = OrderedJson::object();
  for (TensorId id = 0; id < shown.collection.tensors().size(); ++id) {
    tensors.push_back(tensor_json(shown, id, layout));
  }
  for (const auto& [rank, object] : shown.rank_objects) {
    of_ranks[std::to_string(rank)] = object_json(object);
  }
  return print_json(
      {{"path", shown.found.path.native()},
       {"kind", shown.found.kind()},
       {"skipped", skipped_json(shown.found.skipped)},
       {"manifest", shown.manifest ? manifest_json(*shown.manifest) : OrderedJson()},
       {"bytes", shown.collection.bytes()},
       {"tensors", tensors},
       {"objects", object_json(shown.objects)},
       {"rank_objects", of_ranks},
       {"metadata", shown.metadata},
       {"left_out", shown.left_out}});
}

std::string verify_json(std::span<const Verified> all,
                        std::span<const FailedPath> failed) {
  OrderedJson list = OrderedJson::array();
  bool whole = failed.empty();
  for (const Verified& verified : all) {
    OrderedJson damage = OrderedJson::array();
    for (const Damage& one : verified.damage) damage.push_back(damage_json(one));
    whole = whole && verified.whole();
    list.push_back({{"path", verified.path.native()},
                    {"kind", verified.kind},
                    {"whole", verified.whole()},
                    {"digests", verified.digests},
                    {"bytes_read", verified.bytes_read},
                    {"damage", damage},
                    {"extra", verified.extra}});
  }
  return print_json(
      {{"whole", whole}, {"verified", list}, {"errors", errors_json(failed)}});
}

std::string diff_json(const std::string& a, const std::string& b,
                      const DiffReport& report) {
  OrderedJson tensors = OrderedJson::array();
  for (const TensorDiff& tensor : report.tensors) {
    tensors.push_back(tensor_diff_json(tensor));
  }
  return print_json({{"a", a},
                     {"b", b},
                     {"equal", report.equal()},
                     {"bytes", report.bytes},
                     {"objects", text_or_null(report.objects.value_or(""))},
                     {"left_out", report.left_out},
                     {"tensors", tensors}});
}

std::string gc_json(const std::string& run, bool dry_run, const GcResult& done) {
  OrderedJson removed = OrderedJson::array(), kept = OrderedJson::array();
  for (const auto& [name, bytes] : done.removed) {
    removed.push_back({{"folder", name.text()}, {"bytes", bytes}});
  }
  for (const StepName& name : done.kept) kept.push_back(name.text());
  return print_json({{"run", run},
                     {"dry_run", dry_run},
                     {"removed", removed},
                     {"kept", kept},
                     {"swept", done.swept},
                     {"memory", done.memory},
                     {"failed", done.failed},
                     {"in_use_by", text_or_null(done.in_use_by.value_or(""))}});
}

std::string pin_json(const std::string& run, const std::string& folder, bool pinned) {
  return print_json({{"run", run}, {"folder", folder}, {"pinned", pinned}});
}

std::string convert_json(const Converted& done) {
  return print_json({{"from", done.from.path.native()},
                     {"kind", done.from.kind()},
                     {"to", done.to.native()},
                     {"format", done.format->name},
                     {"tensors", done.tensors},
                     {"bytes", done.bytes},
                     {"left_out", done.left_out},
                     {"skipped", skipped_json(done.from.skipped)}});
}

std::string export_json(const Exported& done) {
  return print_json({{"from", done.from.path.native()},
                     {"kind", done.from.kind()},
                     {"to", done.to.native()},
                     {"format", done.format},
                     {"tensors", done.tensors},
                     {"bytes", done.bytes},
                     {"notes", done.notes},
                     {"skipped", skipped_json(done.from.skipped)}});
}

std::string reshard_json(const ReshardPlan& plan, const std::string& to,
                         const std::optional<Resharded>& done) {
  OrderedJson json{
      {"from", plan.from.path.native()},
      {"kind", plan.kind()},
      {"to", to},
      {"format", plan.format},
      {"configuration", plan.whole ? "whole" : to_string(plan.parallel)},
      {"rules", text_or_null(plan.rules)},
      {"tensors", plan.files->tensors().size()},
      {"bytes", plan.target_bytes()},
      {"reads", plan.figures.moved},
      {"reads_bound", plan.figures.moved_bound},
      {"notes", plan.notes},
      {"skipped", skipped_json(plan.from.skipped)}};
  if (done) {
    json["folder"] = done->folder.native();
    json["files"] = done->files;
    json["kept"] = done->kept;
    json["moved"] = done->moved;
    json["seals_equal"] = done->seals;
  }
  return print_json(json);
}

}  // namespace holdfast

// What the writers of all targets of reshard() need: the lease of the hidden run, and the
// number by which an interrupted call is known.
#include <algorithm>

#include "holdfast/base/xxh3.h"
#include "holdfast/reshard/reshard_internal.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/store/records.h"

namespace holdfast {
namespace {

// Each writer has some tens of MiB of memory.
constexpr int kMostWriters = 5;

// What the rule says about files.
std::string text_of_rule(const Rule& rule) {
  const std::string text = fmt::format(
      "{} {} {} {} {} {} {} {} {} {}", rule.pattern, static_cast<int>(rule.site),
      static_cast<int>(rule.cut), rule.axis, rule.parts, rule.unit,
      rule.heads != HeadKind::kNone, rule.stacked, rule.tied, rule.buffer);
  if (rule.in_head == 1 && rule.tied_with.empty() && rule.with.empty()) return text;
  return fmt::format("{} {} {} {}", text, rule.in_head, rule.tied_with, rule.with);
}

}  // namespace

LeaseKeeper::LeaseKeeper(Env& env, const Owner& owner)
    : env_(env), owner_(owner), thread_([this, now = env.now()] { keep(now); }) {}

LeaseKeeper::~LeaseKeeper() {
  MutexLock lock(mutex_);
  stopping_ = true;
  stops_.notify_all();
}

void LeaseKeeper::keep(Instant renewed) {
  const OwnerRecord record = owner_.record();
  const Duration third = (record.lease_until - record.renewed) / 3;
  while (sleep_until(renewed + third)) {
    renewed = env_.now();
    static_cast<void>(owner_.renew());
  }
}

bool LeaseKeeper::sleep_until(Instant end) {
  MutexLock lock(mutex_);
  while (!stopping_ && env_.now() < end) env_.wait_until(stops_, mutex_, end);
  return !stopping_;
}

int writers_of(const ReshardOptions& options, int64_t files) {
  // Also on few cores, because a writer mostly waits for the disk.
  const int64_t wanted = options.threads > 0 ? options.threads : kMostWriters;
  const int64_t most = std::min<int64_t>(wanted, kMostWriters);
  return static_cast<int>(std::clamp<int64_t>(files, 1, most));
}

Result<std::string> fingerprint_of(Env& env, const ReshardPlan& plan) {
  std::string text = fmt::format("{} {}", plan.format, to_string(plan.parallel));
  for (const std::string& note : plan.notes) text += "\n" + note;
  // The files of a Megatron target are not in `plan.files`, but follow from these.
  fmt::format_to(std::back_inserter(text), "\n{} {}", plan.rules, plan.vocabulary);
  for (const Rule& rule : plan.rule_set.rules) text += "\n" + text_of_rule(rule);
  const auto add_file = [&](const Path& path) {
    const Result<FileInfo> info = env.info(path);
    if (!info.ok()) return;
    fmt::format_to(std::back_inserter(text), "\n{} {} {}", path.native(), info->size,
                   info->modified.time_since_epoch().count());
  };
  if (plan.step) {
    const Bytes manifest =
        HOLDFAST_TRY(env.read_file(plan.step->folder / kManifestName));
    text += "\n" + xxh3_digest(manifest);
  } else {
    add_file(plan.from.path);
    for (const auto& source : plan.contents->sources) add_file(source->name());
  }
  const Layout& layout = plan.files->layout();
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    text += "\n" + plan.files->tensor(t).name;
    for (const Slice& slice : layout.slices(t)) {
      fmt::format_to(std::back_inserter(text), " {} {}", to_string(slice.box),
                     layout.holder(slice.first));
    }
  }
  return xxh3_digest(bytes_of(text));
}

}  // namespace holdfast

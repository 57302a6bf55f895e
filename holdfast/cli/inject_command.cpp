// `holdfast inject`: flips bits of a checkpoint by a plan that can be repeated.
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/flip_options.h"
#include "holdfast/cli/text.h"
#include "holdfast/corruption/alter.h"
#include "holdfast/corruption/legacy_sampling.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

constexpr const char* kInjectExample = R"(
Examples:
  holdfast inject base.pt hurt.pt --tensors 'model.*' --seed 7 --checksums consistent
  holdfast inject base.pt --flips 10 --bits exponent --dry-run
  holdfast inject runs/gpt@400 hurt --roles slot --checksums raw --save-plan p.json
  holdfast inject hurt --in-place --undo p.json --checksums raw

Flips bits that the seed chooses: the same seed, trial and selection give the same bits
on every machine and in every format. FROM is a file or folder of a known format, a
step, or a run. Without --in-place a copy is altered. The copy of a step is a run
directory with this one step. A step of a run that a live process writes, and a file
with several hard links, are not altered in place. While a file is altered in place,
its lock keeps other commands of holdfast from altering, mending or converting it.

Without --tensors, --roles and --layers all tensors are chosen. `holdfast show --roles`
prints the role and the layer of each tensor, and which roles are only guessed from names;
--roles-from gives others: {"parameter": ["model/*"], "slot": ["optimizer/*"]}. Layers
are in the order of their names, with numbers as numbers, in every format. A pattern of --tensors
may have * and ?, and matches a whole name or its beginning up to a separator: conv1 is
not conv10. Bits that tensors share count once.

What happens to digests must be said, because results depend on it:
  raw         they stay and so are wrong, as after a fault of the disk
  consistent  checksums are made right, seals stay, as after a fault of the memory
              between the seal and the file
  sealed      seals are made right, too, as after a fault before the seal: no digest
              can show it

--sampling legacy chooses as hdf5_corrupter does, the tool of the first studies: each
tensor is equally likely, whatever its size. --sequence repeats a file of that tool.)";

// How many flips are listed, unless -v is given.
constexpr size_t kFlipsShown = 20;

struct InjectArguments {
  std::string from, to;
  FlipArguments flips;
  int64_t trial = 0;
  std::string plan, save_plan, undo, sequence;
  bool dry_run = false, in_place = false;
};

// Checks what the parser of options cannot check.
Result<void> check_call(const InjectArguments& a) {
  const int plans = !a.plan.empty() + !a.undo.empty() + !a.sequence.empty();
  if (plans > 1) {
    return invalid("--plan, --undo and --sequence: {} are given; expected one", plans);
  }
  if (!a.plan.empty()) HOLDFAST_TRY(check_without_sites(a.flips, "--plan"));
  if (!a.undo.empty()) HOLDFAST_TRY(check_without_sites(a.flips, "--undo"));
  if (a.dry_run) return {};
  if (a.flips.checksums.empty()) {
    return invalid(
        "inject: --checksums is not given; expected raw, consistent or sealed (see "
        "--help)");
  }
  if (a.to.empty() && !a.in_place) {
    return invalid("inject: no TO; expected a new name, --in-place or --dry-run");
  }
  if (!a.to.empty() && a.in_place) {
    return invalid("inject: TO and --in-place are both given; expected one of them");
  }
  return {};
}

Result<FlipPlan> choose_plan(Env& env, const InjectArguments& a, const Found& found) {
  if (!a.plan.empty()) return read_plan_file(env, a.plan);
  if (!a.undo.empty()) return inverse(HOLDFAST_TRY(read_plan_file(env, a.undo)));
  PlanRequest request = HOLDFAST_TRY(read_request(a.flips));
  request.trial = a.trial;
  if (a.flips.anywhere) {
    return make_byte_plan(env, HOLDFAST_TRY(files_of(env, found)), request.count,
                          request.seed, request.trial);
  }
  const Contents contents = HOLDFAST_TRY(open_to_alter(env, found));
  request.roles = HOLDFAST_TRY(roles_in(
      contents, found, HOLDFAST_TRY(read_role_map(env, a.flips.roles_from))));
  if (!a.sequence.empty()) {
    return plan_from_sequence(contents, HOLDFAST_TRY(env.read_text(a.sequence)),
                              a.sequence, request);
  }
  return make_plan(contents, request);
}

// A dry run need not say what happens to the checksums: the plan is fine if it can be
// carried out with some of them.
Result<void> check_any_fixing(Env& env, const Found& found, const FlipPlan& plan) {
  const Result<void> raw = check_alteration(env, found, plan, Fixing::kRaw);
  if (raw.ok() || !plan.bytes.empty()) return raw;
  return check_alteration(env, found, plan, Fixing::kConsistent);
}

void print_plan(const Context& context, const FlipPlan& plan) {
  const size_t count = plan.flips.size() + plan.bytes.size();
  const size_t most = context.verbose ? count : kFlipsShown;
  for (size_t i = 0; i < std::min(count, most); ++i) {
    const std::string line = i < plan.flips.size()
                                 ? describe(plan.flips[i])
                                 : describe(plan.bytes[i - plan.flips.size()]);
    fmt::print(context.out, "{}\n", printable(line));
  }
  if (count > most) {
    fmt::print(context.out, "and {} more (-v lists all)\n",
               human_count(static_cast<int64_t>(count - most)));
  }
  if (plan.unwritten > 0) {
    fmt::print(context.out,
               "passed over {} drawn sites whose elements were never written\n",
               human_count(plan.unwritten));
  }
}

Result<ExitCode> inject(const Context& context, const InjectArguments& a) {
  Env& env = context.env;
  HOLDFAST_TRY(check_call(a));
  Fixing fixing = Fixing::kRaw;
  if (!a.flips.checksums.empty()) {
    fixing = HOLDFAST_TRY(parse_fixing(a.flips.checksums));
  }
  if (!a.to.empty()) HOLDFAST_TRY(check_place(a.to));
  if (!a.save_plan.empty() && env.info(a.save_plan).ok()) {
    return conflict("{}: exists already; expected a new name for the plan", a.save_plan);
  }
  const Found found = HOLDFAST_TRY(find_any(env, a.from));
  tell_skipped(context, found);
  FileLocks locks;
  if (a.in_place && !a.dry_run) {
    HOLDFAST_TRY(lock_files_of(env, found, LockKind::kExclusive, locks));
  }
  const FlipPlan plan = HOLDFAST_TRY(choose_plan(env, a, found));
  const std::string text = encode_flip_plan(plan);
  if (a.dry_run && a.flips.checksums.empty()) {
    HOLDFAST_TRY(check_any_fixing(env, found, plan));
  } else if (a.dry_run || a.in_place) {
    HOLDFAST_TRY(check_alteration(env, found, plan, fixing));
  }
  // Before the alteration: without its plan it could not be undone.
  if (!a.save_plan.empty()) {
    HOLDFAST_TRY(env.replace_file(a.save_plan, bytes_of(text + "\n")));
  }
  if (!a.dry_run && a.in_place) {
    HOLDFAST_TRY(alter_in_place(env, found, plan, fixing, {}, locks));
  } else if (!a.dry_run) {
    const Result<void> made = alter_copy(env, found, plan, fixing, a.to);
    if (!made.ok() && !a.save_plan.empty()) (void)env.remove_file(a.save_plan);
    HOLDFAST_TRY(made);
  }
  if (context.json) {
    fmt::print(context.out, "{}\n", text);
  } else {
    print_plan(context, plan);
  }
  return ExitCode::kDone;
}

}  // namespace

Verb inject_verb() {
  auto arguments = std::make_shared<InjectArguments>();  // shared with `run` below
  InjectArguments& a = *arguments;
  std::vector<Option> options{
      {"FROM", "A file, a step, a run, or RUN@STEP", &a.from, true},
      {"TO", "The altered copy, a new name", &a.to}};
  add_flip_options(a.flips, options);
  for (Option& option : std::vector<Option>{
           {"--trial", "Chooses others with the same seed", &a.trial},
           {"--plan", "Carry out the plan of this file", &a.plan},
           {"--undo", "Undo the plan of this file", &a.undo},
           {"--sequence", "Repeat a sequence of hdf5_corrupter", &a.sequence},
           {"--save-plan", "Write the plan to this file, a new name", &a.save_plan},
           {"--dry-run", "Only show what would change", &a.dry_run},
           {"--in-place", "Alter the original", &a.in_place}}) {
    options.push_back(std::move(option));
  }
  return {.name = "inject",
          .summary = "Flip bits of a checkpoint by a plan that can be repeated",
          .footer = kInjectExample,
          .options = std::move(options),
          .run = [arguments](const Context& c) { return inject(c, *arguments); }};
}

}  // namespace holdfast

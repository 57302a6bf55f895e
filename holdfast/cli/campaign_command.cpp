// `holdfast campaign`: many trials with faults in a checkpoint, and what they say.
#include <fmt/ostream.h>

#include <memory>

#include "holdfast/cli/campaign_report.h"
#include "holdfast/cli/command.h"
#include "holdfast/cli/flip_options.h"
#include "holdfast/cli/interruption.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

constexpr const char* kCampaignExample = R"(
Examples:
  holdfast campaign run base.pt --tensors 'model.*' --flips 1 --checksums consistent \
      --trials 385 -o sdc -- python train.py --resume {checkpoint} --log {log}
  holdfast campaign analyse sdc
  holdfast campaign analyse with_ddp with_horovod       the same plans in both: pairs
  holdfast campaign analyse ddp.* --against horovod.*   the same, in parts
  holdfast campaign analyse ddp.* --parts               parts of one campaign
  holdfast campaign analyse bit-* --strata              parts of one population
  holdfast campaign analyse sdc --rule accuracy:5       harm is 5 points of accuracy less

run: each trial alters a copy of BASE and lets the command after -- continue from it.
In the command, {checkpoint} is the altered copy, {log} is where it writes lines of JSON
such as {"step": 1, "loss": 0.5}, and {state} is where it writes its tensors at the end.
First the command runs twice with an unaltered copy; these golden runs must agree in
every bit. What was recorded is not repeated: the same call continues a campaign.

A trial's outcome is the first of this list that fits. Harm is up to degraded, or with
`analyse --rule accuracy:5` an accuracy at the end that is 5 points lower, or no end.
  refused    the command exited with 3, or logged nothing and said that the file is damaged
  crashed    the command failed, or ended before the last step
  timed out  it took longer than --deadline
  N-EV       a metric is not finite, or a loss is above --extreme-loss times the golden one
  degraded   the last accuracy is --degraded-accuracy points below the golden one, or the
             last loss is above --degraded-loss times the golden one
  spiked     a loss was above --spiked-loss times the golden one, and recovered
  benign     the numbers differ, and that is all
  masked     every bit is equal

With --serve the command is started once, and must call holdfast.campaign.serve().)";

struct CampaignArguments {
  std::string action;
  std::vector<std::string> paths, command, plans, against;
  FlipArguments flips;
  std::string folder, deadline;
  int64_t trials = 0;
  std::string extreme_loss = "1000", degraded_accuracy = "5", degraded_loss = "1.1",
              spiked_loss = "2";
  bool state = false, serve = false;
  bool parts = false, strata = false, converted = false;  // of analyse
  std::string rule = "outcome";                           // of analyse, too
};

Result<Thresholds> read_thresholds(const CampaignArguments& a) {
  Thresholds limits;
  limits.extreme_loss = HOLDFAST_TRY(read_number("--extreme-loss", a.extreme_loss));
  limits.degraded_accuracy =
      HOLDFAST_TRY(read_number("--degraded-accuracy", a.degraded_accuracy));
  limits.degraded_loss = HOLDFAST_TRY(read_number("--degraded-loss", a.degraded_loss));
  limits.spiked_loss = HOLDFAST_TRY(read_number("--spiked-loss", a.spiked_loss));
  return limits;
}

Result<void> check_run_call(const CampaignArguments& a) {
  if (a.paths.size() != 1) {
    return invalid(
        "campaign run: {} paths; expected one BASE, and the command after --",
        a.paths.size());
  }
  if (a.rule != "outcome") {
    return invalid("campaign run: --rule is given; expected it with analyse only");
  }
  if (a.folder.empty()) {
    return invalid("campaign run: -o is not given; expected a folder for the results");
  }
  if (a.flips.checksums.empty()) {
    return invalid(
        "campaign run: --checksums is not given; expected raw, consistent or sealed "
        "(see holdfast inject --help)");
  }
  if (a.trials == 0 && a.plans.empty()) {
    return invalid("campaign run: --trials is not given; expected a number");
  }
  if (!a.plans.empty()) HOLDFAST_TRY(check_without_sites(a.flips, "--plan"));
  return check_place(a.folder);
}

bool names_state(const std::vector<std::string>& command) {
  for (const std::string& word : command) {
    if (word.find("{state}") != word.npos) return true;
  }
  return false;
}

Result<CampaignOptions> read_options(Env& env, const CampaignArguments& a) {
  CampaignOptions options{.base = a.paths[0], .folder = a.folder};
  options.request = HOLDFAST_TRY(read_request(a.flips));
  options.selection = settings_of(a.flips);
  options.roles = HOLDFAST_TRY(read_role_map(env, a.flips.roles_from));
  options.anywhere = a.flips.anywhere;
  for (const std::string& path : a.plans) {
    options.plans.push_back(HOLDFAST_TRY(read_plan_file(env, path)));
  }
  options.fixing = HOLDFAST_TRY(parse_fixing(a.flips.checksums));
  options.trials = a.trials == 0 ? std::ssize(options.plans) : a.trials;
  options.command = a.command;
  options.state = a.state || names_state(a.command);
  options.serve = a.serve;
  options.thresholds = HOLDFAST_TRY(read_thresholds(a));
  if (!a.deadline.empty()) {
    options.deadline = HOLDFAST_TRY(read_number("--deadline", a.deadline));
  }
  return options;
}

Result<ExitCode> run(const Context& context, const CampaignArguments& a) {
  HOLDFAST_TRY(check_run_call(a));
  const CampaignOptions options = HOLDFAST_TRY(read_options(context.env, a));
  const Interruption interruption;
  ProgressBar bar(context, "campaign", ProgressUnit::kTrials);
  CampaignWatch watch;
  watch.golden = [&](const GoldenReport& golden) {
    if (!context.json) context.out << golden_text(golden) << std::flush;
  };
  watch.progress = bar.callback();
  watch.stopped = [&] { return interruption.came(); };
  watch.waits = [&](int64_t unchecked) {
    bar.clear();
    fmt::print(context.err,
               "campaign: {} trials are not checked yet; it stops after the golden run "
               "that checks them, and a second Ctrl-C stops at once without them\n",
               unchecked);
    context.err.flush();
  };
  watch.stopped_again = [&] { return interruption.came_again(); };
  const CampaignResult done =
      HOLDFAST_TRY(run_campaign(context.env, options, watch));
  bar.clear();
  if (done.golden.runs == 0) return ExitCode::kFailed;
  const Path folder = a.folder;
  const CampaignAnalysis analysis =
      HOLDFAST_TRY(analyse_campaign(context.env, {&folder, 1}));
  if (context.json) {
    print_json(context.out, a.folder, done, analysis);
  } else {
    context.out << campaign_text(a.folder, done, analysis);
  }
  return done.stopped ? ExitCode::kFailed : ExitCode::kDone;
}

Result<void> check_analyse_call(const CampaignArguments& a) {
  if (a.paths.empty()) {
    return invalid("campaign analyse: no FOLDER; expected that of a campaign");
  }
  if (!a.command.empty()) {
    return invalid("campaign analyse: a command is given; expected folders only");
  }
  if (a.parts + a.strata + !a.against.empty() > 1) {
    return invalid(
        "campaign analyse: more than one of --parts, --strata and --against; expected "
        "at most one");
  }
  const bool pairs = !a.against.empty() || (a.paths.size() == 2 && !a.parts && !a.strata);
  if (a.converted && !pairs) {
    return invalid("campaign analyse: --converted without pairs; expected two campaigns");
  }
  if (a.paths.size() > 2 && !a.parts && !a.strata && !pairs) {
    return invalid(
        "campaign analyse: {} folders; expected one or two, or --strata, --parts or "
        "--against",
        a.paths.size());
  }
  return {};
}

Result<void> analyse_folders(const Context& context, const CampaignArguments& a) {
  // Prints what was found.
  const auto print = [&](const std::string& text, const auto&... report) {
    if (context.json) {
      print_json(context.out, report...);
    } else {
      context.out << text;
    }
    return Result<void>();
  };
  const std::vector<Path> folders(a.paths.begin(), a.paths.end());
  const HarmRule rule = HOLDFAST_TRY(parse_harm_rule(a.rule).within("--rule"));
  if (a.strata) {
    const StrataAnalysis strata =
        HOLDFAST_TRY(analyse_strata(context.env, folders, rule));
    return print(strata_text(strata), strata);
  }
  if (a.against.empty() && (a.parts || folders.size() == 1)) {
    const CampaignAnalysis analysis =
        HOLDFAST_TRY(analyse_campaign(context.env, folders, rule));
    return print(analysis_text(folders, analysis), folders, analysis);
  }
  PairedFolders sides{.a = folders,
                      .b = {a.against.begin(), a.against.end()},
                      .converted = a.converted,
                      .rule = rule};
  if (a.against.empty()) sides.a = {folders[0]}, sides.b = {folders[1]};
  const PairedAnalysis pairs = HOLDFAST_TRY(analyse_pairs(context.env, sides));
  return print(pairs_text(pairs), sides, pairs);
}

Result<ExitCode> analyse(const Context& context, const CampaignArguments& a) {
  HOLDFAST_TRY(check_analyse_call(a));
  HOLDFAST_TRY(analyse_folders(context, a));
  return ExitCode::kDone;
}

Result<ExitCode> campaign(const Context& context, const CampaignArguments& a) {
  if (a.action == "run") return run(context, a);
  if (a.action == "analyse") return analyse(context, a);
  return invalid("campaign: \"{}\" is no action; expected run or analyse", a.action);
}

std::vector<Option> campaign_options(CampaignArguments& a) {
  std::vector<Option> options{
      {"ACTION", "run or analyse", &a.action, true, {"run", "analyse"}},
      {"PATHS", "run: BASE, a file, a step, a run, or RUN@STEP; analyse: folders",
       &a.paths},
      {"-o,--output", "The campaign's folder, new or to be continued", &a.folder},
      {"--trials", "How many trials the campaign has in all", &a.trials}};
  add_flip_options(a.flips, options);
  for (Option& option : std::vector<Option>{
           {"--plan", "Plans of `inject --save-plan`, one for each trial", &a.plans},
           {"--state", "Compare the state at the end, too; {state} in the command does so",
            &a.state},
           {"--serve", "The command serves many trials", &a.serve},
           {"--deadline", "Seconds for a trial; 10 x the golden run, at least 10",
            &a.deadline},
           {"--extreme-loss", "N-EV above so many times the golden loss",
            &a.extreme_loss},
           {"--degraded-accuracy", "Degraded from so many points down",
            &a.degraded_accuracy},
           {"--degraded-loss", "Or above so many times the golden loss",
            &a.degraded_loss},
           {"--spiked-loss", "Spiked above so many times the golden loss",
            &a.spiked_loss},
           {"--parts", "Analyse folders as parts of one campaign", &a.parts},
           {"--against", "Compare with a campaign of the same plans, part by part",
            &a.against},
           {"--converted", "The base of the second one is the first's in another format",
            &a.converted},
           {"--strata", "Analyse folders as parts of one population, by their sites",
            &a.strata},
           {"--rule",
            "What analyse counts as harm: outcome, or accuracy:POINTS lower at the end",
            &a.rule}}) {
    options.push_back(std::move(option));
  }
  return options;
}

}  // namespace

Verb campaign_verb() {
  auto arguments = std::make_shared<CampaignArguments>();  // shared with `run` below
  CampaignArguments& a = *arguments;
  return {.name = "campaign",
          .summary = "Run many trainings with faults, and analyse their outcomes",
          .footer = kCampaignExample,
          .options = campaign_options(a),
          .run = [arguments](const Context& c) { return campaign(c, *arguments); },
          .command = &a.command};
}

}  // namespace holdfast

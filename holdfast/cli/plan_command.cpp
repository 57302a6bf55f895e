// `holdfast plan`: computes what a change of layout would move, without moving
// anything.
#include <fmt/ostream.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/plan_report.h"
#include "holdfast/cli/python_module.h"
#include "holdfast/cli/text.h"
#include "holdfast/models/families.h"
#include "holdfast/models/resize.h"
#include "holdfast/plan/plan_json.h"
#include "holdfast/state/collection_json.h"

namespace holdfast {
namespace {

constexpr const char* kPlanExample = R"(
Examples:
  holdfast plan --model gpt-6.7b --from tp=4,pp=2,dp=1 --to tp=4,pp=4,dp=1 --hosts 4x4 --place
  holdfast plan --model path/to/config.json --from dp=8,zero=3 --to tp=2,dp=2 --json
  holdfast plan --module my_models:build --from dp=8,zero=3 --to tp=2,dp=2
  holdfast plan --from old_layout.json --to new_layout.json
  holdfast plan --model llama-3-70b --from tp=8,pp=4,dp=2 --to tp=8,pp=4,dp=4
    --speeds device=450,adapter=50,host=400

A configuration is a list of KEY=VALUE separated by commas. The keys are tp, pp, dp, ep,
etp, zero, vpp, shard, qkv, split, layers, stages and world (docs/layouts.md).

--speeds says how fast the links are, in 10^9 bytes a second: device (from a device to
others of its host), adapter (from a device to other hosts), host (from a host to others),
copy (inside a device). latency and move are in microseconds (docs/studies/elastic.md).

--module starts the Python beside this program, or python3, or the one that HOLDFAST_PYTHON
names. It needs torch. The function is called on the meta device, so the model takes no
memory.)";

struct PlanArguments {
  ResizeWords words;
  std::string module;
  std::string export_folder;
};

Result<void> export_layouts(Env& env, const std::string& folder, const Resize& resize) {
  HOLDFAST_TRY(env.create_folders(folder));
  for (const auto& [name, collection] :
       {std::pair("from.json", &resize.source), std::pair("to.json", &resize.target)}) {
    const std::string text = to_json_text(*collection, resize.topology, 1) + "\n";
    HOLDFAST_TRY(env.replace_file(folder + "/" + name, std::as_bytes(std::span(text))));
  }
  return {};
}

void print_resize(const Context& context, const ResizeRequest& request,
                  const Resize& resize, const std::optional<Resize>& in_order) {
  std::ostream& out = context.out;
  fmt::print(out, "{}: {} of state in {} tensors\n", printable(request.model.name),
             human_bytes(resize.source.bytes()),
             human_count(static_cast<int64_t>(resize.source.tensors().size())));
  fmt::print(out, "{} on {} devices -> {} on {} devices, {} hosts\n\n",
             to_string(request.from), request.from.positions(), to_string(request.to),
             request.to.positions(), resize.topology.hosts.size());
  if (in_order) {
    fmt::print(
        out, "{}\n",
        figures_text({{"ranks in order", in_order->plan}, {"placed", resize.plan}}));
    fmt::print(out, "{}\n", placement_text(resize, request.to.tp, context.verbose));
  } else {
    fmt::print(out, "{}\n", figures_text({{"", resize.plan}}));
  }
  fmt::print(out, "{}\nbytes moved{}\n{}", speed_text(resize.topology),
             in_order ? ", placed" : "",
             links_text(resize.plan, resize.topology, context.verbose));
  if (context.verbose) {
    fmt::print(out, "\n{}", holders_text(resize.plan, resize.topology));
  }
  if (resize.cost) fmt::print(out, "\n{}", cost_text(*resize.cost));
}

Result<ResizeWords> words_of(const PlanArguments& arguments) {
  ResizeWords words = arguments.words;
  if (arguments.module.empty()) return words;
  if (!words.model.empty()) {
    return invalid("plan: --model and --module are both given; expected one of them");
  }
  words.description = HOLDFAST_TRY(describe_module(arguments.module));
  words.model = arguments.module;
  return words;
}

Result<void> plan_model(const Context& context, const PlanArguments& arguments) {
  const ResizeWords words = HOLDFAST_TRY(words_of(arguments));
  ResizeRequest request = HOLDFAST_TRY(read_resize(context.env, words));
  const Resize resize = HOLDFAST_TRY(plan_resize(request));
  if (!arguments.export_folder.empty()) {
    HOLDFAST_TRY(export_layouts(context.env, arguments.export_folder, resize));
  }
  if (context.json) {
    print_json(context.out, request, resize);
    return {};
  }
  std::optional<Resize> in_order;
  if (request.place) {
    request.place = false;
    in_order = HOLDFAST_TRY(plan_resize(request));
  }
  print_resize(context, request, resize, in_order);
  return {};
}

Result<void> plan_files(const Context& context, const PlanArguments& arguments) {
  const auto& [model, from, to, hosts, training, speeds, place, description] =
      arguments.words;
  if (place || !hosts.empty() || !training.empty() || !speeds.empty() ||
      !arguments.export_folder.empty()) {
    return invalid(
        "plan: --place, --hosts, --training, --speeds and --export need --model or "
        "--module");
  }
  const auto [topology, made] = HOLDFAST_TRY(plan_layout_files(context.env, from, to));
  if (context.json) {
    print_json(context.out, made, topology);
    return {};
  }
  fmt::print(context.out, "{} -> {}\n\n{}\n{}\nbytes moved\n{}", printable(from),
             printable(to), figures_text({{"", made}}), speed_text(topology),
             links_text(made, topology, context.verbose));
  if (context.verbose) fmt::print(context.out, "\n{}", holders_text(made, topology));
  return {};
}

// Whatever is not found in this verb was named in the call. So this is a wrong call and
// not an empty result.
Result<void> not_found_is_a_wrong_call(Result<void> done) {
  if (done.ok() || done.error().code() != ErrorCode::kNotFound) return done;
  return Error(ErrorCode::kInvalid, done.error().message());
}

}  // namespace

Verb plan_verb() {
  auto arguments = std::make_shared<PlanArguments>();  // shared with `run` below
  PlanArguments& a = *arguments;
  return {
      .name = "plan",
      .summary =
          "Compute the bytes that a change of layout would move, and the lower bound",
      .footer = kPlanExample,
      .options =
          {{"--model", "A built-in model, or a Hugging Face config.json or its folder",
            &a.words.model, false, model_names()},
           {"--module",
            "Any other model, as MODULE:NAME of a Python function that makes a torch "
            "module",
            &a.module},
           {"--from",
            "The configuration now, such as tp=4,pp=2,dp=1; without --model a layout "
            "file",
            &a.words.from, true},
           {"--to", "The new configuration; without --model a layout file", &a.words.to,
            true},
           {"--hosts",
            "Hosts x devices, such as 4x8; by default as many hosts of 8 devices as "
            "needed",
            &a.words.hosts},
           {"--training",
            "The state of a parameter: mixed-adam (14 bytes; the default), adam, sgd, "
            "mixed-sgd, bf16-adam, weights",
            &a.words.training,
            false,
            {"mixed-adam", "adam", "sgd", "mixed-sgd", "bf16-adam", "weights"}},
           {"--place",
            "Choose the devices of the new positions so that as little as possible is "
            "moved",
            &a.words.place},
           {"--speeds", "Say how long it takes with these speeds of links, in GB/s",
            &a.words.speeds},
           {"--export", "Write both layouts to this folder, as from.json and to.json",
            &a.export_folder}},
      .run = [arguments](const Context& context) -> Result<ExitCode> {
        const bool files = arguments->words.model.empty() && arguments->module.empty();
        HOLDFAST_TRY(not_found_is_a_wrong_call(
            files ? plan_files(context, *arguments) : plan_model(context, *arguments)));
        return ExitCode::kDone;
      },
  };
}

}  // namespace holdfast

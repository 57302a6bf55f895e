// `holdfast export`: writes the weights of a checkpoint for other tools.
#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/interruption.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/inspect/export.h"

namespace holdfast {
namespace {

constexpr const char* kExportExample = R"(
Examples:
  holdfast export runs/gpt model.pt                for load_state_dict(), strict
  holdfast export runs/gpt@400 model.safetensors
  holdfast export runs/gpt model/ --config config.json --dtype bf16
                                                   a folder for from_pretrained()
  holdfast export runs/gpt adapter/ --format peft --config adapter_config.json
  holdfast export runs/gpt ema.pt --ema            the average of the weights
  holdfast export runs/gpt opt.pt --optimizer      for optimizer.load_state_dict()
  holdfast export runs/gan g.pt --select 'generator.*' --strip generator.

FROM is a run directory (its newest whole step), RUN@STEP, the folder of a step, or a file
or folder of a known format. Tensors have the names of the model's own state_dict(),
without the words that DDP and torch.compile add. Formats: safetensors (.safetensors),
torch (.pt, .pth, .bin), hf (a name that ends in /), peft. A target that exists is not
overwritten.

A tensor with several names (tied weights) is one tensor in a .pt file, is stored under
each name in a .safetensors file, and under its first name in a folder. --ties each and
--ties once change that.)";

struct ExportArguments {
  std::string from, to, dtype, config, ties, shard_size = "5GB";
  ExportOptions options;
};

// Moves the texts of the command line into the options.
Result<void> read_options(ExportArguments& arguments) {
  ExportOptions& options = arguments.options;
  options.config = arguments.config;
  if (!arguments.dtype.empty()) {
    options.dtype = HOLDFAST_TRY(parse_dtype(arguments.dtype).within("--dtype"));
  }
  options.ties = HOLDFAST_TRY(parse_ties(arguments.ties).within("--ties"));
  options.shard_bytes =
      HOLDFAST_TRY(parse_byte_count(arguments.shard_size).within("--shard-size"));
  return {};
}

Result<ExitCode> export_path(const Context& context, ExportArguments& arguments) {
  HOLDFAST_TRY(read_options(arguments));
  ProgressBar bar(context, "export");
  Interruption interruption;
  arguments.options.reading = {.progress = bar.callback(),
                               .stop = [&] { return interruption.came(); }};
  const Written done = HOLDFAST_TRY(
      export_state(context.env, arguments.from, arguments.to, arguments.options));
  bar.clear();
  print_written(context, done, "notes", "");
  return ExitCode::kDone;
}

}  // namespace

Verb export_verb() {
  auto arguments = std::make_shared<ExportArguments>();  // shared with `run` below
  ExportArguments& a = *arguments;
  return {
      .name = "export",
      .summary = "Write the weights for torch, safetensors, Hugging Face or PEFT",
      .footer = kExportExample,
      .options =
          {{"FROM", "A run, RUN@STEP, a step, or a file", &a.from, true},
           {"TO", "The new file, or folder if it ends in /", &a.to, true},
           {"--format", "safetensors, torch, hf or peft, if the name does not tell it",
            &a.options.format},
           {"--config", "config.json (peft: adapter_config.json), or a folder with it",
            &a.config},
           {"--dtype", "Convert floating-point tensors to f16, bf16, f32 or f64",
            &a.dtype},
           {"--ema", "The average of the weights instead of the weights",
            &a.options.ema},
           {"--optimizer", "What optimizer.load_state_dict() takes, instead of weights",
            &a.options.optimizer},
           {"--select",
            "Only names that match a pattern with *, or one of several "
            "with commas between them",
            &a.options.select},
           {"--strip", "What to remove from the beginning of names", &a.options.strip},
           {"--adapter", "The adapter for peft, if not the one that was active",
            &a.options.adapter},
           {"--shard-size", "The most bytes of a file in a folder for hf",
            &a.shard_size},
           {"--ties", "Store tied weights under each name, or once", &a.ties}},
      .run = [arguments](const Context& c) { return export_path(c, *arguments); }};
}

}  // namespace holdfast

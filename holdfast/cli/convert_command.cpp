// `holdfast convert`: converts a file, step or run into a file of another format.
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/interruption.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/cli/text.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/convert.h"

namespace holdfast {
namespace {

constexpr const char* kConvertStart = R"(
Examples:
  holdfast convert model.pt model.safetensors
  holdfast convert runs/gpt model.pt               the newest whole step
  holdfast convert runs/gpt@400 model/             into a folder of safetensors files
  holdfast convert runs/gpt weights --format torch

FROM is a file or folder of a known format, the folder of a step, or a run directory.
RUN@STEP is a step of a run; if it was saved several times, the last one. A target that
exists is not overwritten. Formats:
)";
constexpr const char* kConvertEnd = R"(
All tensors are written under the names that they have in the checkpoint, also those of
the optimizer, and all objects that the ranks share. Objects of single ranks, such as
random generators (rank-NNNN.objects.json), are left out, and the output says so. For
weights that another tool loads, use holdfast export.)";

// One line for each format: its name, what it is, and the names that choose it.
std::string describe_formats() {
  std::string lines;
  for (const Format& format : formats()) {
    std::vector<std::string> names(format.extensions.begin(), format.extensions.end());
    if (&format == format_for("folder/").value())
      names.push_back("a name that ends in /");
    lines += fmt::format("  {:<20}{}{}{}\n", format.name, format.what,
                         names.empty() ? "" : ": ", fmt::join(names, ", "));
    if (format.write == nullptr) lines.insert(lines.size() - 1, " (only read)");
  }
  return lines;
}

std::vector<std::string> writable_names() {
  std::vector<std::string> names;
  for (const Format& format : formats()) {
    if (format.write != nullptr) names.emplace_back(format.name);
  }
  return names;
}

struct ConvertArguments {
  std::string from, to, format;
};

// An unknown format is a wrong call, and so is a target whose name does not tell its
// format.
Result<void> check_format(const ConvertArguments& arguments) {
  const Result<const Format*> format = arguments.format.empty()
                                           ? format_for(arguments.to)
                                           : find_format(arguments.format);
  return format.ok() ? Result<void>() : format.error().as(ErrorCode::kInvalid);
}

Result<ExitCode> convert_path(const Context& context,
                              const ConvertArguments& arguments) {
  HOLDFAST_TRY(check_format(arguments));
  ProgressBar bar(context, "convert");
  Interruption interruption;
  const Written done = HOLDFAST_TRY(convert(
      context.env, arguments.from, arguments.to,
      {.format = arguments.format, .reading = {.progress = bar.callback(), .stop = [&] {
                                                 return interruption.came();
                                               }}}));
  bar.clear();
  print_written(context, done, "left_out", "left out: ");
  return ExitCode::kDone;
}

}  // namespace

Verb convert_verb() {
  auto arguments = std::make_shared<ConvertArguments>();  // shared with `run` below
  ConvertArguments& a = *arguments;
  return {.name = "convert",
          .summary = "Write a checkpoint in another format",
          .footer = kConvertStart + describe_formats() + kConvertEnd,
          .options = {{"FROM", "A file, a step, a run, or RUN@STEP", &a.from, true},
                      {"TO", "The new file, or folder if it ends in /", &a.to, true},
                      {"--format", "The format of TO, if its name does not tell it",
                       &a.format, false, writable_names()}},
          .run = [arguments](const Context& c) { return convert_path(c, *arguments); }};
}

}  // namespace holdfast

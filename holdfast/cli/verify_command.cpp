// `holdfast verify`: checks whether every byte is as it was written.
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

constexpr const char* kVerifyExample = R"(
Examples:
  holdfast verify runs/gpt          every byte of every step of a run
  holdfast verify runs/gpt@400      one step
  holdfast verify model.pt other.pt
  holdfast verify runs/gpt --fast   only names, sizes and small files

Prints the file, tensors, chunk and bytes of all damage, and exits with 3 if there is
any, even if other paths could not be read. Safetensors files have no digests of their
own: if such a file is not part of a run, only its header is checked. If seals lie beside
a file (holdfast seal), its tensors are compared with them: if one word of a tensor
differs, its elements, bits and true values are named.)";

struct VerifyArguments {
  std::vector<std::string> paths;
  bool fast = false;
  bool seals = false;
};

void print_damage(const Context& context, const Damage& damage) {
  fmt::print(context.out, "  {}", printable(damage.file));
  if (damage.chunk >= 0) fmt::print(context.out, ", chunk {}", damage.chunk);
  if (damage.bytes > 0) {
    fmt::print(context.out, ", bytes {} to {}", damage.offset,
               damage.offset + damage.bytes);
  }
  if (!damage.tensors.empty()) {
    fmt::print(context.out, ", in {}",
               printable(fmt::format("{}", fmt::join(damage.tensors, ", "))));
  }
  fmt::print(context.out, ": {}\n", printable(damage.what));
}

void print_one(const Context& context, const Verified& verified) {
  const bool colour = context.terminal.colour;
  const std::string state = verified.whole() ? paint("whole", Colour::kGreen, colour)
                                             : paint("DAMAGED", Colour::kRed, colour);
  fmt::print(context.out, "{}: {}, {} read{}\n", printable(verified.path.native()),
             state, human_bytes(verified.bytes_read),
             verified.digests ? "" : ", contents not checked");
  for (const Damage& damage : verified.damage) print_damage(context, damage);
  for (const std::string& name : verified.extra) {
    fmt::print(context.out, "  {}: is not a file of the step\n", printable(name));
  }
}

Result<ExitCode> verify_paths(const Context& context,
                              const VerifyArguments& arguments) {
  std::vector<Verified> all;
  std::vector<FailedPath> failed;
  for (const std::string& path : arguments.paths) {
    std::unique_ptr<ProgressBar> bar;
    VerifyOptions options{.depth = arguments.fast ? Depth::kFast : Depth::kFull,
                          .seals = arguments.seals};
    options.progress = [&](const Path& at) {
      bar = std::make_unique<ProgressBar>(context, "verify " + at.filename().native());
      return bar->callback();
    };
    Result<std::vector<Verified>> seen = verify(context.env, path, options);
    if (!seen.ok()) {
      failed.push_back({path, seen.error()});
      continue;
    }
    for (Verified& one : *seen) all.push_back(std::move(one));
  }
  const bool whole = std::ranges::all_of(all, &Verified::whole);
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) {
      field("whole", whole && failed.empty());
      field.list("verified", all);
      field.list("errors", failed);
    });
  } else {
    for (const Verified& one : all) {
      if (!context.quiet || !one.whole()) print_one(context, one);
    }
  }
  const ExitCode told = tell_failed(context, failed);
  return whole ? told : ExitCode::kDamage;
}

}  // namespace

Verb verify_verb() {
  auto arguments = std::make_shared<VerifyArguments>();  // shared with `run` below
  VerifyArguments& a = *arguments;
  return {.name = "verify",
          .summary = "Check every digest, and name what is damaged",
          .footer = kVerifyExample,
          .options = {{"PATH", "Files, steps, runs (all their steps), or RUN@STEP",
                       &a.paths, true},
                      {"--fast", "Check only names, sizes and small files", &a.fast},
                      {"--seals",
                       "Compare steps with their seals, too, which reads them twice",
                       &a.seals}},
          .run = [arguments](const Context& c) { return verify_paths(c, *arguments); },
          .finds_faults = true};
}

}  // namespace holdfast

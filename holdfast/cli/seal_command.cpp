// `holdfast seal`: writes the seals of a file's tensors beside it.
#include <fmt/ostream.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/progress.h"
#include "holdfast/cli/text.h"
#include "holdfast/inspect/seal_check.h"
#include "holdfast/inspect/verify.h"

namespace holdfast {
namespace {

constexpr const char* kSealExample = R"(
Examples:
  holdfast seal model.pt                writes model.pt.seals.json
  holdfast verify model.pt              later: is every tensor as it was?
  holdfast repair model.pt whole.pt     mends one damaged word of each tensor

A seal is a digest of a tensor that does not depend on the file's format, and from which
a damaged word can be mended. Files of every format can be sealed. A step of a run has
seals of its own. A file with wrong checksums is not sealed, and seals that are there
already are not replaced: both would make damage look right.)";

struct SealArguments {
  std::string path;
};

Result<void> check_to_seal(Env& env, const Found& found) {
  if (found.step()) {
    return invalid("{}: is a step, which has seals already; expected a file",
                   found.path.native());
  }
  const Path beside = seals_path(found.path);
  if (env.info(beside).ok()) {
    return conflict("{}: exists already; expected no seals, or remove them first",
                    beside.native());
  }
  const std::vector<Verified> seen = HOLDFAST_TRY(verify(env, found.path));
  if (seen.at(0).whole()) return {};
  return corrupt("{}: is damaged, so it is not sealed: {}", found.path.native(),
                 to_string(seen.at(0).damage.front()));
}

Result<ExitCode> seal_path(const Context& context, const SealArguments& arguments) {
  const Found found = HOLDFAST_TRY(find_any(context.env, arguments.path));
  HOLDFAST_TRY(check_to_seal(context.env, found));
  const Contents contents = HOLDFAST_TRY(open_found(context.env, found));
  ProgressBar bar(context, "seal");
  const std::vector<SealedTensor> seals =
      HOLDFAST_TRY(seal_tensors(contents, bar.callback()));
  bar.clear();
  const Path beside = seals_path(found.path);
  HOLDFAST_TRY(context.env.replace_file(beside, encode_seals(seals)));
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) {
      field("path", found.path.native());
      field("seals", beside.native());
      field("tensors", seals.size());
      field("bytes", contents.collection.bytes());
    });
  } else {
    fmt::print(context.out, "{}: {} tensors, {}\n", printable(beside.native()),
               human_count(std::ssize(seals)),
               human_bytes(contents.collection.bytes()));
  }
  return ExitCode::kDone;
}

}  // namespace

Verb seal_verb() {
  auto arguments = std::make_shared<SealArguments>();  // shared with `run` below
  SealArguments& a = *arguments;
  return {.name = "seal",
          .summary = "Write seals beside a file, to find and mend damage later",
          .footer = kSealExample,
          .options = {{"PATH", "A file or folder of a known format", &a.path, true}},
          .run = [arguments](const Context& c) { return seal_path(c, *arguments); }};
}

}  // namespace holdfast

#include "holdfast/cli/cli.h"

#include <fmt/ostream.h>

#include <algorithm>

#include "holdfast/cli/command.h"

namespace holdfast {
namespace {

ExitCode exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
    case ErrorCode::kUnsupported: return ExitCode::kWrongCall;
    case ErrorCode::kCorrupt: return ExitCode::kDamage;
    case ErrorCode::kNotFound: return ExitCode::kNothing;
    default: return ExitCode::kFailed;
  }
}

int report(std::ostream& err, ExitCode code, std::string message) {
  // One line, whatever was in it.
  std::ranges::replace(message, '\n', ' ');
  fmt::print(err, "holdfast: {}\n", message);
  return static_cast<int>(code);
}

struct Verb {
  CLI::App* app;
  Command command;
};

std::vector<Verb> add_verbs(CLI::App& app) {
  std::vector<Verb> verbs;
  for (const auto add : {add_plan_command}) {
    Command command = add(app);
    verbs.push_back({app.get_subcommands({}).back(), std::move(command)});
  }
  return verbs;
}

std::string names_of(const std::vector<Verb>& verbs) {
  std::string names;
  for (const Verb& verb : verbs) {
    names += (names.empty() ? "" : ", ") + verb.app->get_name();
  }
  return names;
}

// CLI11 would speak of subcommands and extras.
std::optional<std::string> verb_error(const std::vector<std::string>& arguments,
                                      const std::vector<Verb>& verbs) {
  if (arguments.empty()) return "no verb, want " + names_of(verbs);
  const std::string& first = arguments.front();
  const bool known = std::ranges::any_of(
      verbs, [&](const Verb& verb) { return verb.app->get_name() == first; });
  if (known || first.starts_with("-")) return std::nullopt;
  return fmt::format("{}: no such verb, want {}", first, names_of(verbs));
}

}  // namespace

int run_cli(std::vector<std::string> arguments, Env& env, std::ostream& out,
            std::ostream& err) {
  CLI::App app("Keeps a deep-learning training job going.", "holdfast");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every verb");
  const std::vector<Verb> verbs = add_verbs(app);
  if (const auto wrong = verb_error(arguments, verbs)) {
    return report(err, ExitCode::kWrongCall, *wrong);
  }
  std::ranges::reverse(arguments);  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, out, err);  // --help
    return report(err, ExitCode::kWrongCall, error.what());
  }
  for (const Verb& verb : verbs) {
    if (!verb.app->parsed()) continue;
    const Result<void> done = verb.command({env, out});
    if (!done.ok()) {
      return report(err, exit_code(done.error().code()), done.error().message());
    }
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace holdfast

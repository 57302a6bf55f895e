#include "holdfast/cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

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
  // One line, and nothing that a terminal obeys: names come from files.
  std::ranges::replace_if(
      message, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  err << "holdfast: " << message << '\n';
  return static_cast<int>(code);
}

std::vector<Verb> all_verbs() { return {plan_verb()}; }

std::string names_of(const std::vector<Verb>& verbs) {
  std::string names;
  for (const Verb& verb : verbs) names += (names.empty() ? "" : ", ") + verb.name;
  return names;
}

// CLI11 would speak of subcommands and extras.
std::optional<std::string> verb_error(const std::vector<std::string>& arguments,
                                      const std::vector<Verb>& verbs) {
  if (arguments.empty()) return "no verb, want " + names_of(verbs);
  const std::string& first = arguments.front();
  const bool known =
      std::ranges::any_of(verbs, [&](const Verb& verb) { return verb.name == first; });
  if (known || first.starts_with("-")) return std::nullopt;
  return fmt::format("{}: no such verb, want {}", first, names_of(verbs));
}

void add_option(CLI::App& app, const Option& option) {
  if (bool* const* flag = std::get_if<bool*>(&option.into)) {
    app.add_flag(option.name, **flag, option.help);
    return;
  }
  CLI::Option* added = nullptr;
  if (std::string* const* text = std::get_if<std::string*>(&option.into)) {
    added = app.add_option(option.name, **text, option.help);
    if (!(*text)->empty()) added->capture_default_str();
  } else {
    added = app.add_option(option.name, *std::get<int64_t*>(option.into), option.help);
    added->capture_default_str();
  }
  added->required(option.required);
}

CLI::App* add_verb(CLI::App& app, const Verb& verb) {
  CLI::App* added = app.add_subcommand(verb.name, verb.summary);
  added->footer(verb.footer);
  for (const Option& option : verb.options) add_option(*added, option);
  return added;
}

}  // namespace

int run_cli(std::vector<std::string> arguments, Env& env, std::ostream& out,
            std::ostream& err) {
  const std::vector<Verb> verbs = all_verbs();
  if (const auto wrong = verb_error(arguments, verbs)) {
    return report(err, ExitCode::kWrongCall, *wrong);
  }
  CLI::App app("Keeps a deep-learning training job going.", "holdfast");
  app.require_subcommand(1);
  for (const Verb& verb : verbs) add_verb(app, verb);
  std::ranges::reverse(arguments);  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, out, err);  // --help
    return report(err, ExitCode::kWrongCall, error.what());
  }
  for (const Verb& verb : verbs) {
    if (!app.got_subcommand(verb.name)) continue;
    const Result<void> done = verb.run({env, out});
    if (!done.ok()) {
      return report(err, exit_code(done.error().code()), done.error().message());
    }
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace holdfast

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

}  // namespace

int run_cli(std::vector<std::string> arguments, Env& env, std::ostream& out,
            std::ostream& err) {
  CLI::App app("Keeps a deep-learning training job going.", "holdfast");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every verb");
  const std::vector<std::pair<CLI::App*, Command>> commands = [&] {
    std::vector<std::pair<CLI::App*, Command>> all;
    for (const auto add : {add_plan_command}) {
      Command command = add(app);
      all.emplace_back(app.get_subcommands({}).back(), std::move(command));
    }
    return all;
  }();

  std::ranges::reverse(arguments);  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, out, err);  // --help
    return report(err, ExitCode::kWrongCall, error.what());
  }
  for (const auto& [verb, command] : commands) {
    if (!verb->parsed()) continue;
    const Result<void> done = command({env, out});
    if (!done.ok()) {
      return report(err, exit_code(done.error().code()), done.error().message());
    }
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace holdfast

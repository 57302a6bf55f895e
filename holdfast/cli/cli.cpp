#include "holdfast/cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <new>
#include <ostream>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

// If a verb reads files, kUnsupported means that the file is not supported. For any
// other verb the call is wrong.
ExitCode exit_code(ErrorCode code, bool reads_files) {
  switch (code) {
    case ErrorCode::kUnsupported:
      return reads_files ? ExitCode::kFailed : ExitCode::kWrongCall;
    case ErrorCode::kInvalid: return ExitCode::kWrongCall;
    case ErrorCode::kCorrupt: return ExitCode::kDamage;
    case ErrorCode::kNotFound: return ExitCode::kNothing;
    default: return ExitCode::kFailed;
  }
}

// Prints one line with an error to `err`.
void tell(std::ostream& err, std::string message) {
  std::ranges::replace(message, '\n', ' ');
  err << "holdfast: " << printable(message) << '\n';
}

// Reports the failure of a command: a sentence for people and, with --json, an object
// for programs.
struct Report {
  std::ostream& out;
  std::ostream& err;
  bool json = false;
  bool reads_files = false;

  int operator()(const Error& error) const {
    const ExitCode code = exit_code(error.code(), reads_files);
    tell(err, error.message());
    if (json) out << error_json(error, code) << '\n';
    return static_cast<int>(code);
  }
};

std::vector<Verb> all_verbs() {
  return {ls_verb(),     show_verb(),    verify_verb(),   diff_verb(),
          export_verb(), convert_verb(), gc_verb(),       pin_verb(),
          unpin_verb(),  plan_verb(),    interval_verb(), simulate_verb()};
}

// Whether the verb's arguments are files and folders of any kind.
bool reads_files(const std::vector<std::string>& arguments) {
  constexpr std::array<std::string_view, 6> kVerbs{"ls",   "show",   "verify",
                                                   "diff", "export", "convert"};
  return !arguments.empty() && std::ranges::count(kVerbs, arguments.front()) > 0;
}

std::string names_of(const std::vector<Verb>& verbs) {
  std::string names;
  for (const Verb& verb : verbs) names += (names.empty() ? "" : ", ") + verb.name;
  return names;
}

// Checks the verb before CLI11 does, because CLI11's message would speak of subcommands
// and extras. Returns nullopt if the verb is right.
std::optional<std::string> verb_error(const std::vector<std::string>& arguments,
                                      const std::vector<Verb>& verbs) {
  if (arguments.empty()) return "no verb; expected " + names_of(verbs);
  const std::string& first = arguments.front();
  const bool known =
      std::ranges::any_of(verbs, [&](const Verb& verb) { return verb.name == first; });
  if (known || first.starts_with("-")) return std::nullopt;
  return fmt::format("{}: is not a verb; expected {}", first, names_of(verbs));
}

CLI::Option* add_value(CLI::App& app, const Option& option, std::string& text) {
  CLI::Option* added = app.add_option(option.name, text, option.help);
  return text.empty() ? added : added->capture_default_str();
}

CLI::Option* add_value(CLI::App& app, const Option& option, int64_t& number) {
  return app.add_option(option.name, number, option.help)->capture_default_str();
}

CLI::Option* add_value(CLI::App& app, const Option& option, bool& flag) {
  return app.add_flag(option.name, flag, option.help);
}

CLI::Option* add_value(CLI::App& app, const Option& option, auto& other) {
  return app.add_option(option.name, other, option.help);
}

void add_option(CLI::App& app, const Option& option) {
  CLI::Option* added = std::visit(
      [&](auto* into) { return add_value(app, option, *into); }, option.into);
  added->required(option.required);
}

CLI::App* add_verb(CLI::App& app, const Verb& verb) {
  CLI::App* added = app.add_subcommand(verb.name, verb.summary);
  added->footer(verb.footer);
  for (const Option& option : verb.options) add_option(*added, option);
  return added;
}

Result<ExitCode> run_verb(const Verb& verb, const Context& context) {
  try {
    return verb.run(context);
  } catch (const std::bad_alloc&) {
    return no_space("out of memory");
  }
}

}  // namespace

ExitCode tell_failed(const Context& context, std::span<const FailedPath> failed) {
  ExitCode first = ExitCode::kDone;
  for (const auto& [path, error] : failed) {
    const ExitCode code = exit_code(error.code(), true);
    tell(context.err, error.message());
    if (first == ExitCode::kDone || code == ExitCode::kDamage) first = code;
  }
  return first;
}

void tell_skipped(const Context& context, const Found& found) {
  for (const SkippedStep& skipped : found.skipped) {
    tell(context.err,
         fmt::format("{} is passed over: {}", skipped.folder, skipped.error.message()));
  }
}

int run_cli(std::vector<std::string> arguments, Env& env, std::ostream& out,
            std::ostream& err, Terminal terminal) {
  const std::vector<Verb> verbs = all_verbs();
  // Made before the arguments are parsed, so that a wrong call is reported in the same
  // way.
  const Report report{.out = out,
                      .err = err,
                      .json = std::ranges::count(arguments, "--json") > 0,
                      .reads_files = reads_files(arguments)};
  if (const auto wrong = verb_error(arguments, verbs))
    return report(invalid("{}", *wrong));
  CLI::App app("Keeps a deep-learning training job going.", "holdfast");
  app.require_subcommand(1);
  app.set_version_flag("--version", "holdfast " HOLDFAST_VERSION);
  for (const Verb& verb : verbs) add_verb(app, verb);
  // CLI11 expects the arguments in reverse order.
  std::ranges::reverse(arguments);
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    // The exit code is 0 after --help and --version.
    if (error.get_exit_code() == 0) return app.exit(error, out, err);
    return report(invalid("{}", error.what()));
  }
  for (const Verb& verb : verbs) {
    if (!app.got_subcommand(verb.name)) continue;
    const Result<ExitCode> done = run_verb(verb, {env, out, err, terminal});
    return done.ok() ? static_cast<int>(*done) : report(done.error());
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace holdfast

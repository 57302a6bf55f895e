#include "holdfast/cli/cli.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <ostream>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/suggest.h"
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

// Prints one line with an error to `err`. A name that a file gives may be very long, so the
// middle of a message can be left out.
void tell(std::ostream& err, std::string message) {
  constexpr size_t kLongest = 4000;
  std::ranges::replace(message, '\n', ' ');
  err << "holdfast: " << shorten(printable(message), kLongest) << '\n';
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
    if (json) print_json(out, error, code);
    return static_cast<int>(code);
  }
};

std::vector<Verb> all_verbs() {
  return {ls_verb(),       show_verb(),    verify_verb(),  diff_verb(),
          export_verb(),   convert_verb(), gc_verb(),      pin_verb(),
          unpin_verb(),    plan_verb(),    reshard_verb(), interval_verb(),
          simulate_verb(), launch_verb(),  resize_verb(),  rehearse_verb(),
          bench_verb(),    inject_verb(),  campaign_verb(), seal_verb(),
          repair_verb(),   index_verb(),   mount_verb()};
}

// The flags that every verb has. They may stand before the verb, too.
struct CommonFlags {
  bool quiet = false, verbose = false, json = false;

  std::vector<Option> options() {
    return {{"-q,--quiet", "Print only errors, and what --json prints", &quiet},
            {"-v,--verbose", "Shorten nothing, and say how long it took", &verbose},
            {"--json", "Print a report as JSON, for programs", &json}};
  }
};

// Fills `verbs`, which completion reads later, with all verbs and their common flags.
void add_all_verbs(std::vector<Verb>& verbs, CommonFlags& flags) {
  verbs = all_verbs();
  verbs.push_back(completion_verb(verbs));
  for (Verb& verb : verbs) {
    for (Option& option : flags.options()) verb.options.push_back(std::move(option));
  }
}

// The first argument that is no flag; empty if there is none.
std::string verb_word(const std::vector<std::string>& arguments) {
  const auto found = std::ranges::find_if(
      arguments, [](const std::string& word) { return !word.starts_with('-'); });
  return found == arguments.end() ? "" : *found;
}

// Whether the verb's arguments are files and folders of any kind.
bool reads_files(const std::vector<std::string>& arguments) {
  constexpr std::array<std::string_view, 13> kVerbs{
      "ls",     "show",     "verify", "diff",   "export", "convert",
      "inject", "campaign", "seal",   "repair", "reshard", "index",
      "mount"};
  return std::ranges::count(kVerbs, verb_word(arguments)) > 0;
}

// Moves the words after "--" to the verb that takes them as a command.
void split_command(std::vector<std::string>& arguments,
                   const std::vector<Verb>& verbs) {
  const auto verb = std::ranges::find(verbs, verb_word(arguments), &Verb::name);
  if (verb == verbs.end() || verb->command == nullptr) return;
  const auto marker = std::ranges::find(arguments, "--");
  if (marker == arguments.end()) return;
  verb->command->assign(marker + 1, arguments.end());
  arguments.erase(marker, arguments.end());
}

std::vector<std::string> names_of(const std::vector<Verb>& verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.push_back(verb.name);
  return names;
}

// "--jsno: is not an option; did you mean --json?", or the list of all if none is near.
std::string unknown_text(const std::string& word, const std::string& what,
                         const std::vector<std::string>& known) {
  const std::optional<std::string> near = nearest_word(word, known);
  if (near) return fmt::format("{}: is not {}; did you mean {}?", word, what, *near);
  return fmt::format("{}: is not {}; expected {}", word, what, fmt::join(known, ", "));
}

// What other programs call a verb of this one.
struct OtherWord {
  std::string_view word, verb;
};
constexpr std::array<OtherWord, 20> kOtherWords{{
    {"list", "ls"},        {"dir", "ls"},         {"steps", "ls"},
    {"info", "show"},      {"inspect", "show"},   {"cat", "show"},
    {"check", "verify"},   {"validate", "verify"}, {"fsck", "verify"},
    {"compare", "diff"},   {"cmp", "diff"},       {"prune", "gc"},
    {"clean", "gc"},       {"rm", "gc"},          {"remove", "gc"},
    {"run", "launch"},     {"train", "launch"},   {"fix", "repair"},
    {"save", "export"},    {"schedule", "interval"},
}};

// `holdfast help VERB` is `holdfast VERB --help`.
void spell_help(std::vector<std::string>& arguments) {
  const auto word = std::ranges::find(arguments, "help");
  if (word == arguments.end() || verb_word(arguments) != "help") return;
  arguments.erase(word);
  arguments.emplace_back("--help");
}

// Checks the verb before CLI11 does, because CLI11's message would speak of subcommands
// and extras. Returns nullopt if the verb is right.
std::optional<std::string> verb_error(const std::vector<std::string>& arguments,
                                      const std::vector<Verb>& verbs) {
  const std::vector<std::string> names = names_of(verbs);
  const std::string verb = verb_word(arguments);
  if (verb.empty() && !arguments.empty()) return std::nullopt;  // --help, --version
  if (verb.empty()) return fmt::format("no verb; expected {}", fmt::join(names, ", "));
  if (std::ranges::count(names, verb) > 0) return std::nullopt;
  const auto same = std::ranges::find(kOtherWords, verb, &OtherWord::word);
  if (same != kOtherWords.end()) {
    return fmt::format("{}: is not a verb; did you mean {}?", verb, same->verb);
  }
  return unknown_text(verb, "a verb", names);
}

// The names of all options that begin with a dash: "-q,--quiet" are two names.
std::vector<std::string> option_names(const Verb& verb) {
  std::vector<std::string> names;
  for (const Option& option : verb.options) {
    std::string_view rest = option.name;
    while (rest.starts_with('-')) {
      const size_t end = std::min(rest.find(','), rest.size());
      names.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  names.insert(names.end(), {"-h", "--help"});
  return names;
}

// Called when the arguments could not be parsed. Returns a sentence about a missing verb
// or about the first word that looks like an option and is none. Returns nullopt if
// neither is the cause.
std::optional<std::string> option_error(const std::vector<std::string>& arguments,
                                        const std::vector<Verb>& verbs) {
  const auto verb = std::ranges::find(verbs, verb_word(arguments), &Verb::name);
  if (verb == verbs.end()) return verb_error({}, verbs);
  const std::vector<std::string> names = option_names(*verb);
  for (const std::string& word : arguments) {
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || name == "--" || name == "--version") continue;
    if (std::ranges::count(names, name) > 0) continue;
    return fmt::format("{}: {}", verb->name, unknown_text(name, "an option", names));
  }
  return std::nullopt;
}

// An empty text would mean the same as no option at all. It often comes from a variable
// of a script that is not set, and then the option was meant.
std::string refuse_empty(const std::string& text) {
  return text.empty() ? "is empty; expected a value" : "";
}

CLI::Option* add_value(CLI::App& app, const Option& option, std::string& text) {
  CLI::Option* added = app.add_option(option.name, text, option.help);
  if (option.name.starts_with('-')) added->check(refuse_empty);
  return text.empty() ? added : added->capture_default_str();
}

// The parser would take the largest number instead.
std::string refuse_large(const std::string& text) {
  errno = 0;
  static_cast<void>(std::strtoll(text.c_str(), nullptr, 0));
  return errno == ERANGE ? text + "; expected a number below 2^63" : "";
}

CLI::Option* add_value(CLI::App& app, const Option& option, int64_t& number) {
  return app.add_option(option.name, number, option.help)
      ->check(refuse_large)
      ->capture_default_str();
}

CLI::Option* add_value(CLI::App& app, const Option& option, std::optional<int64_t>& number) {
  return app.add_option(option.name, number, option.help)->check(refuse_large);
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

// With -v, says afterwards how long the verb took.
Result<ExitCode> run_timed(const Verb& verb, const Context& context) {
  const Instant began = context.env.now();
  Result<ExitCode> done = run_verb(verb, context);
  const Duration passed = context.env.now() - began;
  if (context.verbose) {
    const double seconds = std::chrono::duration<double>(passed).count();
    tell(context.err, fmt::format("{} took {}", verb.name, human_seconds(seconds)));
  }
  return done;
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
  if (context.quiet) return;
  for (const SkippedStep& skipped : found.skipped) {
    tell(context.err,
         fmt::format("{} is passed over: {}", skipped.folder, skipped.error.message()));
  }
}

int run_cli(std::vector<std::string> arguments, Env& env, std::ostream& out,
            std::ostream& err, Terminal terminal) {
  CommonFlags flags;
  std::vector<Verb> verbs;
  add_all_verbs(verbs, flags);
  spell_help(arguments);
  split_command(arguments, verbs);
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
  for (const Option& option : flags.options()) add_option(app, option);
  for (const Verb& verb : verbs) add_verb(app, verb);
  try {
    // CLI11 expects the arguments in reverse order.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    // The exit code is 0 after --help and --version.
    if (error.get_exit_code() == 0) return app.exit(error, out, err);
    return report(invalid("{}", option_error(arguments, verbs).value_or(error.what())));
  }
  if (flags.quiet && flags.verbose) {
    return report(invalid("-q and -v are both given; expected at most one of them"));
  }
  std::ostream nowhere(nullptr);
  for (const Verb& verb : verbs) {
    if (!app.got_subcommand(verb.name)) continue;
    const bool swallowed = flags.quiet && !report.json && !verb.finds_faults;
    Context context{env, swallowed ? nowhere : out, err, terminal};
    context.quiet = flags.quiet;
    context.verbose = flags.verbose;
    context.json = report.json;
    if (flags.quiet) context.terminal.progress = false;
    const Result<ExitCode> done = run_timed(verb, context);
    return done.ok() ? static_cast<int>(*done) : report(done.error());
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace holdfast

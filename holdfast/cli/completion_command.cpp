// `holdfast completion`: prints a script that lets a shell complete verbs and options.
//
// The scripts are made from the table of verbs, so that a new verb or option is completed
// without further work. Arguments that are no option are completed as names of files.
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"

namespace holdfast {
namespace {

constexpr const char* kCompletionExample = R"(
Examples:
  source <(holdfast completion bash)      in ~/.bashrc
  source <(holdfast completion zsh)       in ~/.zshrc, after compinit
  holdfast completion fish | source       in ~/.config/fish/config.fish)";

using Words = std::vector<std::string>;

struct CompletionArguments {
  std::string shell;
};

bool is_flag(const Option& option) {
  return std::holds_alternative<bool*>(option.into);
}

bool is_positional(const Option& option) { return !option.name.starts_with('-'); }

// "-q,--quiet" is {"-q", "--quiet"}.
Words names_of(const Option& option) {
  Words names;
  for (size_t at = 0; at <= option.name.size();) {
    const size_t end = std::min(option.name.find(',', at), option.name.size());
    names.push_back(option.name.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

// Replaces each character of `which` by `with` and the character.
std::string escaped(std::string_view text, std::string_view which,
                    std::string_view with) {
  std::string out;
  for (const char c : text) {
    if (which.find(c) != which.npos) out += with;
    out += c;
  }
  return out;
}

// A text between single quotes, for bash and zsh.
std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

constexpr const char* kBashHead =
    R"(# Lets bash complete the verbs and options of holdfast.
_holdfast() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}"
  local verb="" values="" options="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ "${COMP_WORDS[i]}" != -* ]]; then verb="${COMP_WORDS[i]}"; break; fi
  done
  COMPREPLY=()
)";

constexpr const char* kBashTail = R"(  [[ "$word" == -* ]] && values="$options"
  COMPREPLY=($(compgen -W "$values" -- "$word"))
}
complete -o bashdefault -o default -F _holdfast holdfast
)";

// The case in which the word before the cursor is an option with a value.
std::string bash_value(const Verb& verb, const Option& option) {
  Words patterns;
  for (const std::string& name : names_of(option)) {
    patterns.push_back(in_quotes(verb.name + " " + name));
  }
  return fmt::format("    {}) values={}; options=; verb=- ;;\n",
                     fmt::join(patterns, "|"),
                     in_quotes(fmt::format("{}", fmt::join(option.choices, " "))));
}

std::string bash_verb(const Verb& verb) {
  Words values, options{"--help"};
  for (const Option& option : verb.options) {
    const Words names = is_positional(option) ? Words{} : names_of(option);
    options.insert(options.end(), names.begin(), names.end());
    if (is_positional(option)) {
      values.insert(values.end(), option.choices.begin(), option.choices.end());
    }
  }
  return fmt::format("    {}) values={}; options={} ;;\n", verb.name,
                     in_quotes(fmt::format("{}", fmt::join(values, " "))),
                     in_quotes(fmt::format("{}", fmt::join(options, " "))));
}

std::string bash_script(const std::vector<Verb>& verbs) {
  std::string values, each;
  Words names;
  for (const Verb& verb : verbs) {
    names.push_back(verb.name);
    each += bash_verb(verb);
    for (const Option& option : verb.options) {
      if (!is_positional(option) && !is_flag(option)) {
        values += bash_value(verb, option);
      }
    }
  }
  return fmt::format(
      "{}  case \"$verb $before\" in\n{}  esac\n  case \"$verb\" in\n"
      "    '') values='{}'; options='--help --version -q --quiet -v --verbose --json' ;;\n"
      "{}  esac\n{}",
      kBashHead, values, fmt::join(names, " "), each, kBashTail);
}

// One argument of zsh's _arguments, in which \ : [ and ] must be escaped.
std::string zsh_option(const Option& option, const std::string& name) {
  const std::string help = escaped(option.help, "\\:[]", "\\");
  const std::string action = option.choices.empty()
                                 ? "_files"
                                 : fmt::format("({})", fmt::join(option.choices, " "));
  if (is_positional(option)) return in_quotes(fmt::format("*:{}:{}", name, action));
  return in_quotes(is_flag(option)
                       ? fmt::format("{}[{}]", name, help)
                       : fmt::format("{}[{}]:value:{}", name, help, action));
}

std::string zsh_verb(const Verb& verb) {
  std::string text = fmt::format("    {}) _arguments", verb.name);
  bool positional = false;
  for (const Option& option : verb.options) {
    // zsh takes only one argument for the rest, so further ones are left out.
    if (is_positional(option) && positional) continue;
    positional |= is_positional(option);
    for (const std::string& name : names_of(option)) {
      text += " \\\n      " + zsh_option(option, name);
    }
  }
  return text + " \\\n      '--help[Print this help]' ;;\n";
}

std::string zsh_script(const std::vector<Verb>& verbs) {
  std::string names, each;
  for (const Verb& verb : verbs) {
    names +=
        "    " +
        in_quotes(fmt::format("{}:{}", verb.name, escaped(verb.summary, "\\:", "\\"))) +
        "\n";
    each += zsh_verb(verb);
  }
  return fmt::format(R"(#compdef holdfast
# Lets zsh complete the verbs and options of holdfast.
_holdfast() {{
  local -a verbs
  verbs=(
{})
  local verb="" i
  for ((i = 2; i < CURRENT; i++)); do
    if [[ "${{words[i]}}" != -* ]]; then verb="${{words[i]}}"; break; fi
  done
  case "$verb" in
    '') _describe verb verbs ;;
{}  esac
}}
if [ "$funcstack[1]" = "_holdfast" ]; then _holdfast "$@"; else compdef _holdfast holdfast; fi
)",
                     names, each);
}

std::string fish_quotes(std::string_view text) {
  return "'" + escaped(text, "\\'", "\\") + "'";
}

std::string fish_option(const Verb& verb, const Option& option) {
  std::string text = fmt::format(
      "complete -c holdfast -n '__fish_seen_subcommand_from {}'", verb.name);
  const std::string choices =
      fish_quotes(fmt::format("{}", fmt::join(option.choices, " ")));
  if (is_positional(option)) {
    return option.choices.empty() ? "" : fmt::format("{} -f -a {}\n", text, choices);
  }
  for (const std::string& name : names_of(option)) {
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (!option.choices.empty()) text += " -x -a " + choices;
  if (option.choices.empty() && !is_flag(option)) text += " -r";
  return text + " -d " + fish_quotes(option.help) + "\n";
}

std::string fish_script(const std::vector<Verb>& verbs) {
  std::string text = "# Lets fish complete the verbs and options of holdfast.\n";
  for (const Verb& verb : verbs) {
    text +=
        fmt::format("complete -c holdfast -n __fish_use_subcommand -f -a {} -d {}\n",
                    verb.name, fish_quotes(verb.summary));
    for (const Option& option : verb.options) text += fish_option(verb, option);
  }
  return text;
}

Result<std::string> script_for(const std::string& shell,
                               const std::vector<Verb>& verbs) {
  if (shell == "bash") return bash_script(verbs);
  if (shell == "zsh") return zsh_script(verbs);
  if (shell == "fish") return fish_script(verbs);
  return invalid("shell \"{}\": is not known; expected bash, zsh or fish", shell);
}

}  // namespace

Verb completion_verb(const std::vector<Verb>& verbs) {
  auto arguments = std::make_shared<CompletionArguments>();  // shared with `run` below
  CompletionArguments& a = *arguments;
  return {.name = "completion",
          .summary = "Print a script that lets a shell complete verbs and options",
          .footer = kCompletionExample,
          .options =
              {{"SHELL", "bash, zsh or fish", &a.shell, true, {"bash", "zsh", "fish"}}},
          .run = [arguments, &verbs](const Context& c) -> Result<ExitCode> {
            const std::string text = HOLDFAST_TRY(script_for(arguments->shell, verbs));
            if (c.json) {
              print_json(c.out, [&](FieldWriter& field) {
                field("shell", arguments->shell);
                field("script", text);
              });
            } else {
              fmt::print(c.out, "{}", text);
            }
            return ExitCode::kDone;
          }};
}

}  // namespace holdfast

// Reads rules: their words, and JSON files of them.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "holdfast/base/json_fields.h"
#include "holdfast/base/number_text.h"
#include "holdfast/models/rules.h"

namespace holdfast {
namespace {

// Components and units are far below this.
constexpr int64_t kMostComponents = int64_t{1} << 20;

// What a word says. A rule has at most one word about each of these.
enum class About : uint8_t {
  kSite,
  kCut,
  kPresence,
  kUnit,
  kHeads,
  kStacked,
  kTied,
  kBuffer,
  kTransposed,
  kWith
};

std::optional<int64_t> number_of(std::string_view text) {
  const auto number = number_in<int64_t>(text);
  return number && *number >= 1 && *number <= kMostComponents ? number : std::nullopt;
}

// Reads "rows", "columns/3" and the like.
bool read_axis(std::string_view word, Rule& rule) {
  const size_t slash = std::min(word.find('/'), word.size());
  const std::string_view name = word.substr(0, slash);
  if (name != "rows" && name != "columns") return false;
  const auto parts = slash == word.size() ? std::optional<int64_t>(1)
                                          : number_of(word.substr(slash + 1));
  rule.cut = Cut::kAxis;
  rule.axis = name == "rows" ? 0 : 1;
  rule.parts = parts.value_or(1);
  return parts.has_value();
}

// Reads "heads", "heads*3", "kv_heads", "groups" and "by_head".
bool read_heads(std::string_view word, Rule& rule) {
  const bool several = word.starts_with("heads*");
  if (several) {
    const auto count = number_of(word.substr(word.find('*') + 1));
    if (!count) return false;
    rule.in_head = *count;
  } else if (word != "heads" && word != "kv_heads" && word != "groups" &&
             word != "by_head") {
    return false;
  }
  rule.heads = word == "kv_heads"  ? HeadKind::kKeyValues
               : word == "groups"  ? HeadKind::kGroups
               : word == "by_head" ? HeadKind::kOtherSize
                                   : HeadKind::kQueries;
  return true;
}

// Reads one word of a rule. Returns nullopt if it is none.
std::optional<About> read_word(std::string_view word, Rule& rule) {
  if (word == "first" || word == "last") {
    rule.site = word == "first" ? Site::kFirst : Site::kLast;
    return About::kSite;
  }
  if (word == "whole") return About::kCut;
  if (word == "vocabulary") {
    rule.cut = Cut::kVocabulary;
    return About::kCut;
  }
  if (read_axis(word, rule)) return About::kCut;
  if (word == "optional" || word == "some") {
    rule.required = false;
    rule.some = word == "some";
    return About::kPresence;
  }
  if (word.starts_with("unit=")) {
    const auto unit = number_of(word.substr(word.find('=') + 1));
    rule.unit = unit.value_or(1);
    return unit ? std::optional(About::kUnit) : std::nullopt;
  }
  if (read_heads(word, rule)) return About::kHeads;
  if (word.starts_with("tied=")) {
    rule.tied = true;
    rule.tied_with = word.substr(word.find('=') + 1);
    return About::kTied;
  }
  if (word.starts_with("with=")) {
    rule.with = word.substr(word.find('=') + 1);
    return About::kWith;
  }
  const std::array<std::tuple<std::string_view, bool*, About>, 4> flags{
      {{"stacked", &rule.stacked, About::kStacked},
       {"transposed", &rule.transposed, About::kTransposed},
       {"tied", &rule.tied, About::kTied},
       {"buffer", &rule.buffer, About::kBuffer}}};
  for (const auto& [name, flag, about] : flags) {
    if (word != name) continue;
    *flag = true;
    return about;
  }
  return std::nullopt;
}

struct RuleDocument {
  std::string name{};
  std::map<std::string, std::string> rules{};  // words, by their pattern

  static void fields(auto& self, auto&& field) {
    field.kind("rules");
    field.version(1);
    field("name", self.name);
    field("rules", self.rules);
  }
};

// Reads the words of the pattern's rule, and notes what they are about.
Result<Rule> collect_words(std::string_view pattern, std::string_view words,
                           std::map<About, std::string_view>& said) {
  Rule rule{.pattern = std::string(pattern)};
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(word.size() + 1, words.size()));
    if (word.empty()) continue;
    const auto about = read_word(word, rule);
    if (!about) {
      return invalid(
          "{}: \"{}\" is no word of a rule; expected words such as first, last, whole, "
          "rows, columns/3 or vocabulary (docs/reshard.md)",
          pattern, word.substr(0, 80));
    }
    const auto [before, is_new] = said.emplace(*about, word);
    if (!is_new) {
      return invalid("{}: says both \"{}\" and \"{}\"; expected one of them", pattern,
                     before->second, word);
    }
  }
  if (rule.transposed) rule.axis = 1 - rule.axis;
  return rule;
}

}  // namespace

Result<Rule> parse_words(std::string_view words) {
  std::map<About, std::string_view> said;
  return collect_words("", words, said);
}

Result<Rule> parse_rule(std::string_view pattern, std::string_view words) {
  std::map<About, std::string_view> said;
  Rule rule = HOLDFAST_TRY(collect_words(pattern, words, said));
  const auto count = std::ranges::count(pattern, '#');
  if (pattern.empty() || count > 1 || std::ranges::count(pattern, '%') > 1 ||
      (count == 1) == said.contains(About::kSite)) {
    return invalid(
        "{}: is no pattern of a rule; expected one # for the layer, or the word first "
        "or last",
        pattern.substr(0, 200));
  }
  return rule;
}

Result<RuleSet> parse_rule_set(std::string_view json, std::string_view where) {
  auto document = HOLDFAST_TRY(from_json<RuleDocument>(json, where));
  if (document.rules.empty()) {
    return invalid("{}: rules: expected an object of patterns and words", where);
  }
  RuleSet set{.name = std::move(document.name)};
  for (const auto& [pattern, words] : document.rules) {
    set.rules.push_back(HOLDFAST_TRY(parse_rule(pattern, words).within(where)));
  }
  return set;
}

}  // namespace holdfast

#include "holdfast/campaign/training_log.h"

#include <bit>
#include <cmath>
#include <limits>

#include "holdfast/base/json_fields.h"

namespace holdfast {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Puts NaN, Infinity and -Infinity outside of texts into quotes, because Python writes
// them and JSON does not have them.
std::string with_quoted_words(std::string_view line) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (inside && line[i] == '\\' && i + 1 < line.size()) {
      out += line[i++];
    } else if (line[i] == '"') {
      inside = !inside;
    }
    const std::string_view rest = line.substr(i);
    size_t word = 0;
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (!inside && rest.starts_with(name)) word = name.size();
    }
    if (word == 0) {
      out += line[i];
      continue;
    }
    out += '"' + std::string(rest.substr(0, word)) + '"';
    i += word - 1;
  }
  return out;
}

std::optional<double> number_of_word(const std::string& word) {
  if (word == "nan" || word == "NaN") return kNan;
  if (word == "inf" || word == "Infinity") return kInf;
  if (word == "-inf" || word == "-Infinity") return -kInf;
  return std::nullopt;
}

// A number as it is written or as Python writes it; nullopt for anything else.
std::optional<double> number_in(const JsonPlace& at) {
  if (at.is_null()) return kNan;
  if (const auto word = at.as<std::string>()) return number_of_word(*word);
  return at.as<double>();
}

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

std::string shown_metric(std::optional<double> number) {
  return number ? fmt::format("{}", *number) : "missing";
}

std::optional<std::string> line_difference(const LogLine& a, const LogLine& b) {
  if (a.step != b.step) return fmt::format("step {} against step {}", a.step, b.step);
  std::map<std::string, double> names = a.metrics;
  names.insert(b.metrics.begin(), b.metrics.end());
  for (const auto& [name, unused] : names) {
    const auto of_a = a.metric(name), of_b = b.metric(name);
    if (of_a && of_b && same_bits(*of_a, *of_b)) continue;
    return fmt::format("step {}: {} is {} against {}", a.step, name, shown_metric(of_a),
                       shown_metric(of_b));
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> LogLine::metric(const std::string& name) const {
  const auto found = metrics.find(name);
  if (found == metrics.end()) return std::nullopt;
  return found->second;
}

std::optional<double> TrainingLog::after_loading(const std::string& name) const {
  for (const LogLine& line : lines) {
    if (line.step != 0) break;
    if (const auto number = line.metric(name)) return number;
  }
  return std::nullopt;
}

std::optional<double> TrainingLog::last(const std::string& name) const {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (const auto number = line->metric(name)) return number;
  }
  return std::nullopt;
}

void put_json(JsonWriter& out, const LogLine& line) {
  out.open('{');
  out.key("step");
  out.put(line.step);
  for (const auto& [name, number] : line.metrics) {
    out.key(name);
    out.put(number);
  }
  out.close();
}

Result<void> read_json(const JsonPlace& at, LogLine& line) {
  bool has_step = false;
  HOLDFAST_TRY(at.for_each([&](const std::string& name, const JsonPlace& one) {
    if (name == "step") {
      has_step = true;
      return one.read(line.step);
    }
    if (const auto number = number_in(one)) line.metrics[name] = *number;
    return Result<void>();
  }));
  if (!has_step) return invalid("{}: no key \"step\"", at.text());
  const auto accuracy = line.metric("accuracy");
  if (!accuracy || (*accuracy >= 0 && *accuracy <= 1) || std::isnan(*accuracy)) return {};
  return invalid("{}: accuracy is {}; expected a fraction from 0 to 1", at.text(),
                 *accuracy);
}

void put_json(JsonWriter& out, const TrainingLog& log) { put_json(out, log.lines); }

Result<void> read_json(const JsonPlace& at, TrainingLog& log) {
  return read_json(at, log.lines);
}

Result<TrainingLog> parse_log(std::string_view text, const std::string& where,
                              bool torn) {
  TrainingLog log;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string place = fmt::format("{}: line {}", where, number);
    const auto json = JsonDocument::parse(with_quoted_words(line), place);
    if (!json.ok() && torn && end == std::string_view::npos) break;
    if (!json.ok()) return json.error();
    HOLDFAST_TRY(read_json(json->root(), log.lines.emplace_back()));
  }
  return log;
}

std::optional<std::string> first_difference(const TrainingLog& a,
                                            const TrainingLog& b) {
  for (size_t i = 0; i < std::min(a.lines.size(), b.lines.size()); ++i) {
    if (auto found = line_difference(a.lines[i], b.lines[i])) return found;
  }
  if (a.lines.size() == b.lines.size()) return std::nullopt;
  return fmt::format("{} lines against {} lines", a.lines.size(), b.lines.size());
}

}  // namespace holdfast

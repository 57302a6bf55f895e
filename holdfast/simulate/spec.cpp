#include "holdfast/simulate/spec.h"

#include <cmath>

#include "holdfast/base/number_text.h"
#include "holdfast/schedule/cadence.h"

namespace holdfast {
namespace {

using Kind = FailureModel::Kind;

constexpr size_t kMostParts = 1'000'000;

std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t end = text.find(mark);
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos || out.size() > kMostParts) return out;
    text.remove_prefix(end + 1);
  }
}

// Splits "kind:rest". Without a colon the rest is empty.
std::pair<std::string_view, std::string_view> split_kind(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {text, {}};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// Reads a time constant and returns 1 / time.
Result<double> parse_rate(std::string_view text) {
  const double time = HOLDFAST_TRY(parse_seconds(text, "curve"));
  if (!(time > 0) || !std::isfinite(time)) {
    return invalid("curve: a time of \"{}\"; expected more than 0", text);
  }
  return 1 / time;
}

Result<Curve> parse_drops(const std::vector<std::string_view>& parts) {
  const double first = HOLDFAST_TRY(parse_number(parts[0], "curve"));
  std::vector<Curve::Drop> drops;
  for (size_t i = 1; i < parts.size(); ++i) {
    const auto each = split(parts[i], '/');
    if (each.size() != 3) {
      return invalid("curve: drop \"{}\"; expected START/FLOOR/TIME", parts[i]);
    }
    drops.push_back({HOLDFAST_TRY(parse_seconds(each[0], "curve")),
                     HOLDFAST_TRY(parse_number(each[1], "curve")),
                     HOLDFAST_TRY(parse_rate(each[2]))});
  }
  return Curve::drops(first, drops);
}

// Calls `visit` with the numbers of each line that has any. Text after # is ignored,
// and so is a first line that begins with a letter.
template <typename Visit>
Result<void> each_line(std::string_view text, std::string_view where, Visit&& visit) {
  size_t number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    std::vector<double> numbers;
    for (size_t at = 0; at < line.size();) {
      const size_t begin = line.find_first_not_of(", \t\r;", at);
      if (begin == std::string_view::npos) break;
      const size_t end = std::min(line.find_first_of(", \t\r;", begin), line.size());
      const auto word = line.substr(begin, end - begin);
      if (number == 1 && std::isalpha(static_cast<unsigned char>(word[0]))) break;
      numbers.push_back(
          HOLDFAST_TRY(parse_number(word, fmt::format("{} line {}", where, number))));
      at = end;
    }
    if (!numbers.empty()) HOLDFAST_TRY(visit(numbers, number));
  }
  return {};
}

Result<std::vector<double>> parse_times(std::string_view text, std::string_view where) {
  std::vector<double> out;
  HOLDFAST_TRY(each_line(
      text, where, [&](const std::vector<double>& line, size_t n) -> Result<void> {
        if (line.size() != 1) {
          return invalid("{} line {}: {} numbers; expected one time", where, n,
                         line.size());
        }
        out.push_back(line[0]);
        return {};
      }));
  return out;
}

}  // namespace

Result<double> parse_number(std::string_view text, std::string_view where) {
  const std::optional<double> value = number_in<double>(text);
  if (value && std::isfinite(*value)) return *value;
  return invalid("{}: \"{}\"; expected a number", where, text);
}

Result<Curve> parse_curve(std::string_view text) {
  const auto [kind, rest] = split_kind(text);
  const std::vector<std::string_view> parts = split(rest, ',');
  const size_t n = parts.size();
  if (kind == "drops" && n >= 2) return parse_drops(parts);
  const bool power = kind == "power" && (n == 3 || n == 4);
  if (!power && !(kind == "exp" && (n == 2 || n == 3))) {
    return invalid(
        "curve: \"{}\"; expected exp:FIRST,TIME[,FLOOR], "
        "power:FIRST,TIME,EXPONENT[,FLOOR], "
        "drops:FIRST,START/FLOOR/TIME,... or a file of losses",
        text);
  }
  const double first = HOLDFAST_TRY(parse_number(parts[0], "curve"));
  const double rate = HOLDFAST_TRY(parse_rate(parts[1]));
  const bool has_floor = n == (power ? 4u : 3u);
  const double floor =
      has_floor ? HOLDFAST_TRY(parse_number(parts.back(), "curve")) : 0;
  if (!power) return Curve::exponential(first, rate, floor);
  return Curve::power(first, rate, HOLDFAST_TRY(parse_number(parts[2], "curve")),
                      floor);
}

Result<Curve> parse_curve_points(std::string_view text, std::string_view where) {
  std::vector<std::pair<double, double>> points;
  HOLDFAST_TRY(each_line(
      text, where, [&](const std::vector<double>& line, size_t n) -> Result<void> {
        if (line.size() != 2) {
          return invalid("{} line {}: {} numbers; expected seconds and loss", where, n,
                         line.size());
        }
        points.emplace_back(line[0], line[1]);
        return {};
      }));
  return Curve::points(points).within(where);
}

Result<Workers> parse_workers(std::string_view text) {
  Workers out;
  for (const std::string_view part : split(text, ',')) {
    const auto [first, rest] = split_kind(part);
    const bool phase = !rest.empty();
    const double start = phase ? HOLDFAST_TRY(parse_seconds(first, "workers")) : 0;
    const double count = HOLDFAST_TRY(parse_number(phase ? rest : first, "workers"));
    if (!(count >= 1 && count <= 1e9)) {
      return invalid("workers: {}; expected 1 to 10^9", count);
    }
    if (!out.phases.empty() && !(start > out.phases.back().start)) {
      return invalid("workers: \"{}\"; expected phases TIME:COUNT with rising times",
                     text);
    }
    out.phases.push_back({start, count});
  }
  return out;
}

Result<FailureModel> parse_failures(std::string_view text) {
  const auto [kind, rest] = split_kind(text);
  FailureModel out;
  if (kind == "exponential" && rest.empty()) return out;
  if (kind == "never" && rest.empty()) {
    out.kind = Kind::kNever;
    return out;
  }
  if (kind == "once") {
    out.kind = Kind::kOnce;
    if (!rest.empty()) out.share = HOLDFAST_TRY(parse_number(rest, "failures"));
    return out;
  }
  if (kind == "every") {
    out.kind = Kind::kEvery;
    const auto parts = split(rest, ',');
    out.period = HOLDFAST_TRY(parse_seconds(parts[0], "failures"));
    if (parts.size() > 1) out.phase = HOLDFAST_TRY(parse_number(parts[1], "failures"));
    if (parts.size() <= 2) return out;
  }
  if (kind == "weibull") {
    out.kind = Kind::kWeibull;
    const auto parts = split(rest, ',');
    if (!rest.empty()) out.shape = HOLDFAST_TRY(parse_number(parts[0], "weibull"));
    if (parts.size() > 1) out.age = HOLDFAST_TRY(parse_seconds(parts[1], "weibull"));
    if (parts.size() <= 2) return out;
  }
  return invalid(
      "failures: \"{}\"; expected exponential, weibull[:SHAPE[,AGE]], never, "
      "once[:SHARE], every:TIME[,PHASE] or trace:FILE",
      text);
}

Result<FailureModel> parse_trace(std::string_view text, std::string_view where) {
  FailureModel out;
  out.kind = Kind::kTrace;
  out.trace = HOLDFAST_TRY(parse_times(text, where));
  if (out.trace.empty())
    return invalid("{}: has no failures; expected one time on each line", where);
  return out;
}

Result<Schedule> parse_schedule(std::string_view text, std::string_view where) {
  Schedule out{.times = HOLDFAST_TRY(parse_times(text, where))};
  double before = 0;
  for (const double time : out.times) {
    if (!(time > before)) {
      return invalid("{}: a save at {} s after {} s; expected rising times", where,
                     time, before);
    }
    before = time;
  }
  return out;
}

Result<TierCost> parse_tier(std::string_view text) {
  const auto parts = split(text, ',');
  if (parts.size() != 4 || parts[0].empty()) {
    return invalid("tier: \"{}\"; expected NAME,STALL,PERSIST,MTBF", text);
  }
  TierCost tier{.name = std::string(parts[0])};
  tier.stall = HOLDFAST_TRY(parse_seconds(parts[1], "tier"));
  tier.persist = HOLDFAST_TRY(parse_seconds(parts[2], "tier"));
  tier.mtbf = HOLDFAST_TRY(parse_seconds(parts[3], "tier"));
  return tier;
}

Result<std::vector<Stops::At>> parse_stops(std::string_view text, bool hard) {
  std::vector<Stops::At> out;
  for (const std::string_view part : split(text, ',')) {
    const auto each = split(part, '/');
    Stops::At stop{.time = HOLDFAST_TRY(parse_seconds(each[0], "rungs")), .hard = hard};
    if (each.size() == 2) stop.share = HOLDFAST_TRY(parse_number(each[1], "rungs"));
    if (each.size() > 2) return invalid("rungs: \"{}\"; expected TIME/SHARE", part);
    out.push_back(stop);
  }
  return out;
}

}  // namespace holdfast

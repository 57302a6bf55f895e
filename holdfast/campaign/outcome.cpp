#include "holdfast/campaign/outcome.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace holdfast {
namespace {

constexpr int kDamageExitCode = 3;

// How torch, zipfile, NumPy, h5py, zlib, TensorFlow, safetensors and Holdfast say that a
// file is damaged, in lower case.
constexpr std::array<std::string_view, 14> kRefusalWords{
    "corrupterror",          "corrupted",           "is corrupt",
    "damaged",               "checksum",            "bad crc",
    "crc mismatch",          "badzipfile",          "data loss",
    "datalosserror",         "incorrect data check", "pytorchstreamreader failed",
    "safetensorerror",       "inflate() failed"};

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// The last line with text: an exception's message stands there.
std::string last_line(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.remove_suffix(1);
  }
  const size_t begin = text.rfind('\n');
  return std::string(begin == text.npos ? text : text.substr(begin + 1)).substr(0, 300);
}

std::string reason_of(const TrialEnd& end) {
  const std::string line = last_line(end.said);
  return line.empty() ? end.how : end.how + ": " + line;
}

// The line of the golden run for a line of a trial; null if it has none.
const LogLine* golden_line(const TrainingLog& golden, const TrainingLog& log,
                           size_t line) {
  // Both logs usually have the same lines.
  if (line < golden.lines.size() && golden.lines[line].step == log.lines[line].step) {
    return &golden.lines[line];
  }
  const auto found =
      std::ranges::find(golden.lines, log.lines[line].step, &LogLine::step);
  return found == golden.lines.end() ? nullptr : &*found;
}

// The first step whose loss is more than `factor` times the golden one; nullopt if there
// is none.
std::optional<std::string> exceeds(const TrainingLog& log, const TrainingLog& golden,
                                   double factor) {
  for (size_t i = 0; i < log.lines.size(); ++i) {
    const LogLine* wanted = golden_line(golden, log, i);
    const auto loss = log.lines[i].metric("loss");
    const auto normal = wanted ? wanted->metric("loss") : std::nullopt;
    if (!loss || !normal || !(std::abs(*loss) > factor * std::abs(*normal))) continue;
    return fmt::format("step {}: loss is {:.4g}, golden {:.4g}", log.lines[i].step,
                       *loss, *normal);
  }
  return std::nullopt;
}

std::optional<std::string> not_finite(const TrainingLog& log,
                                      const TrainingLog& golden) {
  for (size_t i = 0; i < log.lines.size(); ++i) {
    const LogLine* wanted = golden_line(golden, log, i);
    for (const auto& [name, number] : log.lines[i].metrics) {
      const auto normal = wanted ? wanted->metric(name) : std::nullopt;
      if (std::isfinite(number) || (normal && !std::isfinite(*normal))) continue;
      return fmt::format("step {}: {} is {}", log.lines[i].step, name, number);
    }
  }
  return std::nullopt;
}

std::optional<std::string> degraded(const TrainingLog& log, const TrainingLog& golden,
                                    const Thresholds& thresholds) {
  const auto accuracy = log.last("accuracy"), normal = golden.last("accuracy");
  // A ten-thousandth of a point is left to rounding: 0.95 - 0.90 is less than 0.05.
  if (accuracy && normal &&
      100 * (*normal - *accuracy) >= thresholds.degraded_accuracy - 1e-4) {
    return fmt::format("accuracy ends at {:.4g}, golden {:.4g}", *accuracy, *normal);
  }
  const auto loss = log.last("loss"), normal_loss = golden.last("loss");
  if (loss && normal_loss &&
      std::abs(*loss) > thresholds.degraded_loss * std::abs(*normal_loss)) {
    return fmt::format("loss ends at {:.4g}, golden {:.4g}", *loss, *normal_loss);
  }
  return std::nullopt;
}

Judged judge_failure(const TrialEnd& end, const TrainingLog& log) {
  if (end.kind == TrialEnd::Kind::kTimedOut) return {Outcome::kTimedOut, end.how};
  return {is_refusal(end, log) ? Outcome::kRefused : Outcome::kCrashed, reason_of(end)};
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kRefused: return "refused";
    case Outcome::kCrashed: return "crashed";
    case Outcome::kTimedOut: return "timed out";
    case Outcome::kNev: return "N-EV";
    case Outcome::kDegraded: return "degraded";
    case Outcome::kSpiked: return "spiked";
    case Outcome::kBenign: return "benign";
    case Outcome::kMasked: return "masked";
  }
  return "";
}

Result<Outcome> parse_outcome(std::string_view name) {
  for (const Outcome outcome : kAllOutcomes) {
    if (name_of(outcome) == name) return outcome;
  }
  return invalid("outcome \"{}\": expected one such as benign", name);
}

std::string to_string(const Thresholds& thresholds) {
  return fmt::format(
      "N-EV above {} x, degraded from {} points or above {} x, spiked above {} x",
      thresholds.extreme_loss, thresholds.degraded_accuracy, thresholds.degraded_loss,
      thresholds.spiked_loss);
}

bool is_refusal(const TrialEnd& end, const TrainingLog& log) {
  if (end.kind != TrialEnd::Kind::kFailed) return false;
  if (end.code == kDamageExitCode) return true;
  if (!log.lines.empty()) return false;
  const std::string said = lower(end.said);
  return std::ranges::any_of(kRefusalWords, [&](std::string_view word) {
    return said.find(word) != said.npos;
  });
}

Result<void> check_losses(const TrainingLog& golden) {
  for (const LogLine& line : golden.lines) {
    const auto loss = line.metric("loss");
    if (!loss || !std::isfinite(*loss) || *loss > 0) continue;
    return invalid(
        "step {}: loss is {}; expected losses above 0, or another name for this metric",
        line.step, *loss);
  }
  return {};
}

Judged judge(const TrialEnd& end, const TrainingLog& log, const TrainingLog& golden,
             bool same_state, const Thresholds& thresholds) {
  if (end.kind != TrialEnd::Kind::kFinished) return judge_failure(end, log);
  if (log.last_step() != golden.last_step()) {
    return {Outcome::kCrashed, fmt::format("ended at step {}; expected {}",
                                           log.last_step(), golden.last_step())};
  }
  if (const auto why = not_finite(log, golden)) return {Outcome::kNev, *why};
  if (const auto why = exceeds(log, golden, thresholds.extreme_loss)) {
    return {Outcome::kNev, *why};
  }
  if (const auto why = degraded(log, golden, thresholds)) {
    return {Outcome::kDegraded, *why};
  }
  if (const auto why = exceeds(log, golden, thresholds.spiked_loss)) {
    return {Outcome::kSpiked, *why};
  }
  if (const auto why = first_difference(log, golden)) return {Outcome::kBenign, *why};
  if (!same_state) return {Outcome::kBenign, "the state differs"};
  return {Outcome::kMasked, ""};
}

}  // namespace holdfast

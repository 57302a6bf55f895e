#include "holdfast/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

// The least time between two updates of the line.
constexpr Duration kBetween = std::chrono::milliseconds(100);
// Moves the cursor to the start of the line and clears the line.
constexpr const char* kWipe = "\r\033[K";

}  // namespace

ProgressBar::ProgressBar(const Context& context, const std::string& label,
                         ProgressUnit unit)
    : env_(context.env),
      stream_(context.terminal.progress ? &context.err : nullptr),
      label_(printable(label)),
      unit_(unit),
      began_(env_.now()) {}

void ProgressBar::update(int64_t done, int64_t total) {
  if (stream_ == nullptr) return;
  const Instant now = env_.now();
  if (drawn_ && now - *drawn_ < kBetween) return;
  drawn_ = now;
  visible_ = true;
  *stream_ << kWipe << line(done, total, now - began_) << std::flush;
}

void ProgressBar::clear() {
  if (visible_) *stream_ << kWipe << std::flush;
  visible_ = false;
}

Progress ProgressBar::callback() {
  return [this](int64_t done, int64_t total) { update(done, total); };
}

std::string ProgressBar::amount(int64_t count) const {
  return unit_ == ProgressUnit::kBytes ? human_bytes(count) : human_count(count);
}

std::string ProgressBar::rate(double each_second) const {
  return unit_ == ProgressUnit::kBytes
             ? human_bytes(static_cast<int64_t>(each_second))
             : human_figure(each_second);
}

std::string ProgressBar::line(int64_t done, int64_t total, Duration passed) const {
  const double part =
      total <= 0 ? 1
                 : std::clamp(static_cast<double>(done) / static_cast<double>(total),
                              0.0, 1.0);
  std::string text = fmt::format("{}  {:3.0f} %  {} of {}", label_, 100 * part,
                                 amount(done), amount(total));
  const double seconds = std::chrono::duration<double>(passed).count();
  if (seconds <= 0 || done <= 0) return text;
  const double speed = static_cast<double>(done) / seconds;
  const double left = static_cast<double>(std::max<int64_t>(total - done, 0)) / speed;
  text += fmt::format("  {}/s  {} left", rate(speed),
                      human_clock(static_cast<int64_t>(std::min(left, 1e9))));
  return text;
}

}  // namespace holdfast

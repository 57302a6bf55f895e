#include "options.h"

#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <set>

#include "tier.h"

namespace holdfast::python {
namespace {

constexpr double kLongest = 1e9;  // seconds

// How messages name the type that an option must have.
template <typename T>
constexpr const char* kTypeName = nullptr;
template <>
constexpr const char* kTypeName<bool> = "True or False";
template <>
constexpr const char* kTypeName<int> = "a whole number";
template <>
constexpr const char* kTypeName<int64_t> = "a whole number";
template <>
constexpr const char* kTypeName<double> = "a number";
template <>
constexpr const char* kTypeName<std::string> = "text";
template <>
constexpr const char* kTypeName<std::vector<int64_t>> = "a list of whole numbers";
template <>
constexpr const char* kTypeName<Keep> = "a holdfast.Keep";
template <>
constexpr const char* kTypeName<std::vector<HeldTier>> = "a list of holdfast.Tier";
template <>
constexpr const char* kTypeName<std::map<std::string, std::string>> =
    "a dict of names and versions";

class OptionReader {
 public:
  explicit OptionReader(const nb::dict& given) : given_(given) {}

  // The value of the option, or nullopt if it is not given.
  template <typename T>
  std::optional<T> value(const char* name) {
    static_assert(kTypeName<T> != nullptr, "name the type above");
    known_.insert(name);
    if (!given_.contains(name) || given_[name].is_none()) return std::nullopt;
    T found{};
    // True is a number in Python, but hardly meant as one.
    const bool number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
    if ((number && nb::isinstance<nb::bool_>(given_[name])) ||
        !nb::try_cast(given_[name], found)) {
      const std::string text = nb::repr(given_[name]).c_str();
      throw nb::type_error(
          fmt::format("{}={}; expected {}", name, text, kTypeName<T>).c_str());
    }
    return found;
  }
  template <typename T>
  void read(const char* name, T& into) {
    if (auto found = value<T>(name)) into = *std::move(found);
  }
  template <typename T>
  void read(const char* name, std::optional<T>& into) {
    if (auto found = value<T>(name)) into = *std::move(found);
  }
  void read_seconds(const char* name, Duration& into) {
    if (const auto found = value<double>(name)) into = duration_of(name, *found);
  }
  // A text that `parse` reads.
  template <typename T>
  void parse(const char* name, T& into, const auto& parse) {
    if (const auto found = value<std::string>(name)) into = unwrap(parse(*found));
  }
  // One of these words.
  template <typename T>
  void choose(const char* name, T& into,
              std::initializer_list<std::pair<std::string_view, T>> words) {
    const auto found = value<std::string>(name);
    if (!found.has_value()) return;
    std::vector<std::string_view> names;
    for (const auto& [word, meaning] : words) {
      names.push_back(word);
      if (word == *found) {
        into = meaning;
        return;
      }
    }
    const std::string_view last = names.back();
    names.pop_back();
    const std::string expected = fmt::format("{} or {}", fmt::join(names, ", "), last);
    throw Raised(invalid("{}: \"{}\"; expected {}", name, *found, expected));
  }

  // Throws if an option was given that nobody has read.
  void check_all_read() const {
    for (const auto& [key, unused] : given_) {
      const std::string name = nb::str(key).c_str();
      if (known_.contains(name)) continue;
      throw nb::type_error(fmt::format("{}: no such option", name).c_str());
    }
  }

  static Duration duration_of(const char* name, double seconds) {
    if (!(seconds >= 0 && seconds < kLongest)) {
      throw Raised(
          invalid("{}: {} seconds; expected 0 or more, below 1e9", name, seconds));
    }
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }

 private:
  const nb::dict& given_;
  std::set<std::string> known_;
};

// "30m", or "90" for seconds; nullopt for "never".
Result<std::optional<Duration>> parse_fail_after(const std::string& text) {
  const double seconds = HOLDFAST_TRY(parse_seconds(text, "fail_after"));
  if (seconds >= kLongest) return std::optional<Duration>();
  return std::optional(OptionReader::duration_of("fail_after", seconds));
}

void read_saver_options(OptionReader& given, SaverOptions& options) {
  given.read("ring", options.ring_bytes);
  given.read("in_flight", options.in_flight);
  given.choose("backpressure", options.backpressure,
               {{"wait", Backpressure::kWait},
                {"skip", Backpressure::kSkip},
                {"newest", Backpressure::kNewest}});
  given.choose(
      "guard", options.guard,
      {{"sample", Guard::kSample}, {"full", Guard::kFull}, {"off", Guard::kOff}});
  given.choose("seal", options.seal_at,
               {{"auto", SealAt::kDevices},
                {"staged", SealAt::kStaged},
                {"source", SealAt::kSource}});
  given.read("keep", options.keep);
  if (const auto tiers = given.value<std::vector<HeldTier>>("tiers")) {
    options.tiers = tier_copies_of(*tiers, options.keep);
  }
  given.read("allow_unreachable_tiers", options.allow_unreachable_tiers);
  given.read("incremental", options.incremental);
  given.read("full_every", options.full_every);
  given.read("compress", options.compress);
  given.read("parity", options.parity);
  given.read("read_back", options.read_back);
  given.read("space_reserve", options.space_reserve);
  given.read("direct", options.direct);
  given.parse("fail_after", options.fail_after, parse_fail_after);
  given.read("recover", options.ranks_are_replaced);
  given.read_seconds("timeout", options.timeout);
  given.read("software", options.software);
  options.job = scheduler_job(variable);
}

void read_scheduler_options(OptionReader& given, SchedulerOptions& options) {
  given.parse("every", options.every, parse_cadence);
  given.parse("objective", options.objective, parse_objective);
  given.read("mtbf", options.mtbf);
  given.read("budget", options.budget);
  given.read("total_steps", options.total_steps);
  given.read("slack", options.slack);
  given.read("stop_rate", options.stop_rate);
  given.read("deadline", options.deadline);
  given.read("durable_steps", options.durable_steps);
  given.read("milestones", options.milestones);
}

}  // namespace

SaverOptions saver_options_of(const nb::dict& given) {
  SaverOptions options;
  OptionReader reader(given);
  read_saver_options(reader, options);
  reader.check_all_read();
  return options;
}

JobOptions job_options_of(const nb::dict& given) {
  JobOptions options;
  OptionReader reader(given);
  read_scheduler_options(reader, options.schedule);
  read_saver_options(reader, options.saver);
  reader.read_seconds("grace", options.grace);
  reader.read("signals", options.signals);
  if (const auto folder = reader.value<std::string>("handover")) {
    options.handover = *folder;
  }
  reader.check_all_read();
  return options;
}

}  // namespace holdfast::python

// Runs the program of a campaign on a checkpoint: in a new process for each trial, or in
// one that serves many trials.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/campaign/outcome.h"
#include "holdfast/env/env.h"

namespace holdfast {

// The files of a trial. They have the same names in all trials, so that a program cannot
// tell trials apart.
struct TrialFiles {
  Path checkpoint{};
  Path log{};
  std::optional<Path> state{};
};

// Returns true when the campaign should stop.
using Stopped = std::function<bool()>;

class TrialRunner {
 public:
  virtual ~TrialRunner() = default;

  // Runs the program and waits for it, at most for `most`. Fails if the program cannot
  // be started.
  virtual Result<TrialEnd> run(const TrialFiles& files, Duration most,
                               const Stopped& stopped) = 0;
  // Makes sure that the next trial runs in a new process.
  virtual void renew() = 0;
  // Whether a process waits for the next trial.
  virtual bool is_running() const = 0;
  // Whether trials share a process, so that something could leak from one into the next.
  virtual bool is_shared() const = 0;
};

struct RunnerOptions {
  // The words {checkpoint}, {log} and {state} in it are replaced, also inside of longer
  // words.
  std::vector<std::string> command{};
  Path work{};  // a folder for what the program prints
  // How long a program that serves may take until all of its ranks have connected.
  Duration start = std::chrono::minutes(10);
};

// Fails with kInvalid if the command does not have the words that it needs, and with
// kNotFound if there is no such program. A served program takes the files by a socket,
// and needs no such words.
Result<void> check_command(const std::vector<std::string>& command, bool state,
                           bool serve);

// Starts the program for each trial.
std::unique_ptr<TrialRunner> make_fresh_runner(Env& env, RunnerOptions options);
// Starts the program once, and again after it has failed. It must call
// holdfast.campaign.serve(), or speak as docs/campaigns.md says.
std::unique_ptr<TrialRunner> make_served_runner(Env& env, RunnerOptions options);

// Replaces the paths of the trial's files by {checkpoint}, {log} and {state}, so that a
// folder called "damaged" is no refusal, and equal trials have equal words.
std::string without_paths(std::string text, const TrialFiles& files);

// For the runners: the end of what the program has printed on stderr, without paths.
std::string tail_of_errors(Env& env, const Path& errors, const TrialFiles& files);
double seconds_since(Env& env, Instant began);

// How long a program gets to clean up when it is ended.
inline constexpr Duration kTrialGrace = std::chrono::seconds(5);

}  // namespace holdfast

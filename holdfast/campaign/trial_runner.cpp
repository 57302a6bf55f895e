#include "holdfast/campaign/trial_runner.h"

#include <algorithm>
#include <filesystem>

#include "holdfast/env/child.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {
namespace {

constexpr int64_t kTailBytes = 64 << 10;
// How often a waiting campaign looks whether it should stop.
constexpr Duration kLook = std::chrono::milliseconds(200);

std::string replaced(std::string text, std::string_view from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
  return text;
}

bool has_word(const std::vector<std::string>& command, std::string_view word) {
  return std::ranges::any_of(
      command, [&](const std::string& one) { return one.find(word) != one.npos; });
}

class FreshRunner : public TrialRunner {
 public:
  FreshRunner(Env& env, RunnerOptions options)
      : env_(env), options_(std::move(options)) {}

  Result<TrialEnd> run(const TrialFiles& files, Duration most,
                       const Stopped& stopped) override {
    ChildOptions child_options{.command = filled(files),
                               .output = options_.work / "output",
                               .errors = options_.work / "errors"};
    const Instant began = env_.now();
    Child child = HOLDFAST_TRY(Child::start(child_options));
    std::optional<ChildEnd> ended;
    bool late = false, stop = false;
    while (!ended && !late && !stop) {
      const Duration passed = env_.now() - began;
      late = passed >= most;
      stop = stopped();
      if (!late && !stop) ended = child.wait(std::min<Duration>(kLook, most - passed));
    }
    TrialEnd end{.seconds = seconds_since(env_, began)};
    if (!ended) {
      child.end(kTrialGrace);
      end.kind = stop ? TrialEnd::Kind::kStopped : TrialEnd::Kind::kTimedOut;
      end.how = fmt::format("did not end within {:.3g} s", end.seconds);
      return end;
    }
    if (ended->succeeded()) return end;
    end.kind = TrialEnd::Kind::kFailed;
    end.code = ended->code;
    end.how = ended->text();
    end.said = tail_of_errors(env_, *child_options.errors, files);
    return end;
  }

  void renew() override {}
  bool is_running() const override { return false; }
  bool is_shared() const override { return false; }

 private:
  std::vector<std::string> filled(const TrialFiles& files) const {
    std::vector<std::string> words;
    for (std::string word : options_.command) {
      word = replaced(std::move(word), "{checkpoint}", files.checkpoint.native());
      word = replaced(std::move(word), "{log}", files.log.native());
      if (files.state) {
        word = replaced(std::move(word), "{state}", files.state->native());
      }
      words.push_back(std::move(word));
    }
    return words;
  }

  Env& env_;
  const RunnerOptions options_;
};

}  // namespace

Result<void> check_command(const std::vector<std::string>& command, bool state,
                           bool serve) {
  if (command.empty()) {
    return invalid("no command is given; expected one after --");
  }
  for (const char* word : {"{checkpoint}", "{log}"}) {
    if (serve || has_word(command, word)) continue;
    return invalid("the command does not name {}; expected {{checkpoint}} and {{log}}",
                   word);
  }
  if (!serve && state && !has_word(command, "{state}")) {
    return invalid("the command does not name {{state}}; expected it with --state");
  }
  return find_program(command[0]);
}

std::string without_paths(std::string text, const TrialFiles& files) {
  const auto replace_path = [&](const Path& path, const char* word) {
    if (path.empty()) return;
    // A program may have made a path absolute.
    std::error_code failed;
    const Path whole = std::filesystem::absolute(path, failed).lexically_normal();
    if (!failed) text = replaced(std::move(text), whole.native(), word);
    text = replaced(std::move(text), path.native(), word);
  };
  replace_path(files.checkpoint, "{checkpoint}");
  replace_path(files.log, "{log}");
  replace_path(files.state.value_or(Path()), "{state}");
  return text;
}

std::string tail_of_errors(Env& env, const Path& errors, const TrialFiles& files) {
  const auto source = FileSource::open(env, errors);
  if (!source.ok()) return "";
  const int64_t count = std::min((*source)->size(), kTailBytes);
  const auto bytes = (*source)->read_bytes((*source)->size() - count, count);
  if (!bytes.ok()) return "";
  return without_paths(std::string(text_of(*bytes)), files);
}

double seconds_since(Env& env, Instant began) {
  return std::chrono::duration<double>(env.now() - began).count();
}

std::unique_ptr<TrialRunner> make_fresh_runner(Env& env, RunnerOptions options) {
  return std::make_unique<FreshRunner>(env, std::move(options));
}

}  // namespace holdfast

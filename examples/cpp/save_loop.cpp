// A loop that saves like a training but trains nothing: it restores the newest step, if
// there is one, then changes its weights and saves them again and again.
//
//   save_loop RUN SAVES MEGABYTES    e.g. save_loop runs/demo 3 256
//
// Kill it at any time: the next start continues from the newest whole step.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "holdfast/checkpoint/restore.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/env/posix_env.h"

namespace {

using namespace holdfast;

// The state: the weights of one layer. Every step changes them.
struct Model {
  explicit Model(int64_t megabytes)
      : weights(static_cast<size_t>(megabytes) * 1'000'000 / sizeof(float)) {}

  Result<LocalState> state() {
    return make_local_state(std::vector{
        whole_piece("layer.weight", std::span(weights), {std::ssize(weights)})});
  }

  void train(int64_t step) {
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<float>(static_cast<int64_t>(i % 1000) + step);
    }
  }

  std::vector<float> weights;
};

Result<int64_t> resume(Env& env, const Path& run, const LocalState& into) {
  const Result<RestoredState> restored = restore(env, run, into);
  if (!restored.ok()) {
    if (restored.error().code() != ErrorCode::kNotFound) return restored.error();
    std::printf("there is no step to restore; begins at step 0\n");
    return 0;
  }
  for (const SkippedStep& skipped : restored->skipped) {
    std::printf("skipped %s: %s\n", skipped.folder.c_str(),
                skipped.error.message().c_str());
  }
  std::printf("restored step %lld\n", static_cast<long long>(restored->step));
  return restored->step;
}

Result<void> run_loop(Env& env, const Path& run, int64_t saves, int64_t megabytes) {
  Model model(megabytes);
  const LocalState state = HOLDFAST_TRY(model.state());
  int64_t step = HOLDFAST_TRY(resume(env, run, state));
  std::fflush(stdout);
  if (saves == 0) return {};
  const auto saver = HOLDFAST_TRY(Saver::open(env, run));
  for (int64_t i = 0; i < saves; ++i) {
    step += 100;
    model.train(step);
    const SaveHandle handle = HOLDFAST_TRY(
        saver->save({.step = step,
                     .state = &state,
                     .metrics = {{"loss", 100.0 / static_cast<double>(step)}}}));
    HOLDFAST_TRY(handle.captured());  // from now on the weights may change again
    const Durable durable = HOLDFAST_TRY(handle.durable());
    std::printf("saved %s\n", durable.folder.filename().c_str());
    std::fflush(stdout);
  }
  return saver->close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: save_loop RUN SAVES MEGABYTES\n");
    return 2;
  }
  const auto env = make_posix_env();
  const int64_t saves = std::atoll(argv[2]), megabytes = std::atoll(argv[3]);
  const Result<void> done = run_loop(*env, argv[1], saves, megabytes);
  if (done.ok()) return 0;
  std::fprintf(stderr, "save_loop: %s\n", done.error().message().c_str());
  return 1;
}

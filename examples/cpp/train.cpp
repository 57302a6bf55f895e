// A training loop in C++ with libtorch: a small network with dropout learns a function.
//
//   train RUN STEPS    e.g. train runs/cpp 200
//
// Kill it at any time and start it again: every loss, printed with all its bits, equals
// that of a run that was not killed. If it is asked to stop by a signal, it saves and
// exits with 143.
#include <torch/torch.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "holdfast/env/posix_env.h"
#include "holdfast/job/job.h"

namespace {

using namespace holdfast;

struct Net : torch::nn::Module {
  Net() {
    in = register_module("in", torch::nn::Linear(8, 64));
    middle = register_module("middle", torch::nn::Linear(64, 64));
    out = register_module("out", torch::nn::Linear(64, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = torch::dropout(torch::relu(in(x)), 0.1, is_training());
    return out(torch::relu(middle(y)));
  }
  torch::nn::Linear in = nullptr, middle = nullptr, out = nullptr;
};

// Describes the memory of a tensor to Holdfast. This process holds the whole tensor.
Result<LocalPiece> piece_of(const std::string& name, const torch::Tensor& tensor) {
  const Dtype dtype = tensor.dtype() == torch::kUInt8 ? Dtype::kU8 : Dtype::kF32;
  const auto sizes = tensor.sizes();
  const Shape shape = HOLDFAST_TRY(Shape::create({sizes.data(), sizes.size()}));
  return whole_piece({.name = name, .dtype = dtype, .shape = shape},
                     {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
}

// All that a step depends on: the parameters, their moments, the number of updates and
// the random generator. The data depend only on the number of the step.
class Training {
 public:
  Training() : optimizer_(net_.parameters(), torch::optim::AdamOptions(1e-3)) {
    // Adam makes its moments in the first update. They are made here already, because a
    // checkpoint needs them before that.
    for (const torch::Tensor& parameter : net_.parameters()) {
      auto moments = std::make_unique<torch::optim::AdamParamState>();
      moments->step(0);
      moments->exp_avg(torch::zeros_like(parameter));
      moments->exp_avg_sq(torch::zeros_like(parameter));
      optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(moments);
    }
    random_ = at::detail::getDefaultCPUGenerator().get_state();
  }

  Result<std::vector<LocalPiece>> pieces() {
    std::vector<LocalPiece> pieces;
    for (const auto& named : net_.named_parameters()) {
      const std::string& name = named.key();
      pieces.push_back(HOLDFAST_TRY(piece_of("model." + name, named.value().detach())));
      auto& slots = moments(named.value());
      pieces.push_back(
          HOLDFAST_TRY(piece_of("optimizer." + name + ".exp_avg", slots.exp_avg())));
      pieces.push_back(HOLDFAST_TRY(
          piece_of("optimizer." + name + ".exp_avg_sq", slots.exp_avg_sq())));
    }
    pieces.push_back(HOLDFAST_TRY(piece_of("generator", random_)));
    pieces.back().at_once = true;  // copied inside save(): the next step changes it
    return pieces;
  }

  // take_generator() is called before a save and set_generator() after a restore.
  void take_generator() {
    random_.copy_(at::detail::getDefaultCPUGenerator().get_state());
  }
  void set_generator() {
    auto generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(random_);
  }
  int64_t updates() { return moments(net_.parameters().front()).step(); }
  void set_updates(int64_t updates) {
    for (const torch::Tensor& p : net_.parameters()) moments(p).step(updates);
  }

  double backward(int64_t step) {
    auto draw = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    const torch::Tensor x = torch::randn({32, 8}, draw);
    optimizer_.zero_grad();
    const torch::Tensor loss =
        torch::mse_loss(net_.forward(x), x.sin().sum(1, /*keepdim=*/true));
    loss.backward();
    return loss.item<double>();
  }
  void update() { optimizer_.step(); }

 private:
  torch::optim::AdamParamState& moments(const torch::Tensor& parameter) {
    return static_cast<torch::optim::AdamParamState&>(
        *optimizer_.state().at(parameter.unsafeGetTensorImpl()));
  }

  Net net_;
  torch::optim::Adam optimizer_;
  torch::Tensor random_;
};

// Restores the newest step, if there is one. Returns the number of the next step.
Result<int64_t> resume(Job& job, Training& training, const LocalPieces& pieces) {
  const Result<RestoredState> restored = job.resume(pieces);
  if (!restored.ok()) {
    if (restored.error().code() != ErrorCode::kNotFound) return restored.error();
    HOLDFAST_TRY(job.attach(pieces));
    return 0;
  }
  const int64_t* const updates = restored->objects.as<int64_t>();
  if (updates == nullptr) {
    return invalid("{}: no number of updates; expected one in its objects",
                   restored->folder.native());
  }
  training.set_updates(*updates);
  training.set_generator();
  std::fprintf(stderr, "resumed after step %" PRId64 "\n", restored->step);
  return restored->step + 1;
}

Result<int> train(Env& env, const Path& run, int64_t steps) {
  torch::manual_seed(0);
  Training training;
  const LocalPieces pieces = HOLDFAST_TRY(training.pieces());
  const auto job = HOLDFAST_TRY(Job::open(
      env, run, nullptr,
      {.schedule = {.every = EverySteps{20}}, .saver = {.guard = Guard::kSample}}));
  const int64_t start = HOLDFAST_TRY(resume(*job, training, pieces));
  for (int64_t step = start; step < steps; ++step) {
    const double loss = training.backward(step);
    job->settle();  // waits until the last save is captured: the update changes tensors
    training.update();
    std::printf("%" PRId64 " %a\n", step, loss);
    std::fflush(stdout);
    const Due due = HOLDFAST_TRY(job->due(step));
    if (!due.save) continue;
    training.take_generator();
    const SaveHandle handle =
        HOLDFAST_TRY(job->save({.step = step,
                                .pieces = pieces,
                                .objects = {.of_all = Object(training.updates())},
                                .metrics = {{"loss", loss}}}));
    if (!due.stop) continue;
    HOLDFAST_TRY(job->wait_stopped(handle));
    HOLDFAST_TRY(job->close());
    return kStoppedExit;
  }
  HOLDFAST_TRY(job->close());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: train RUN STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  const auto env = make_posix_env();
  const Result<int> done = train(*env, argv[1], std::atoll(argv[2]));
  if (done.ok()) return *done;
  std::fprintf(stderr, "train: %s\n", done.error().message().c_str());
  return 1;
}

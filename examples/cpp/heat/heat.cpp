// Heat spreads over a metal plate. Every rank of MPI computes some rows of the plate.
//
//   mpirun -n 4 heat RUN STEPS    e.g. mpirun -n 4 heat runs/plate 1000
//
// Kill it at any time and start it again, on as many ranks as you like: every line that
// it prints equals that of a run that was not killed, bit for bit. If it is asked to
// stop by SIGUSR1, which mpirun passes on, it saves and exits with 143.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "holdfast/env/posix_env.h"
#include "holdfast/job/job.h"
#include "holdfast/mpi/mpi_transport.h"

namespace {

using namespace holdfast;

constexpr int64_t kRows = 240, kColumns = 320;
constexpr double kHot = 100, kSpeed = 0.2;

// The rows [first, last) of the plate. Above and below them is a copy of the row that
// the neighbour has there. Outside of the plate it is hot above, and cold (0 degrees)
// on the other sides.
class Plate {
 public:
  Plate(int rank, int ranks)
      : above_(rank > 0 ? rank - 1 : MPI_PROC_NULL),
        below_(rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL),
        first_(kRows * rank / ranks),
        last_(kRows * (rank + 1) / ranks),
        cells_(static_cast<size_t>((rows() + 2) * kColumns)),
        next_(static_cast<size_t>(rows() * kColumns)) {
    if (rank == 0) std::ranges::fill(row(0), kHot);
  }

  // What this rank holds of the tensor "heat", which is the whole plate.
  LocalPiece piece() {
    return make_piece("heat", own_rows(), {kRows, kColumns},
                      Box{{first_, last_}, {0, kColumns}});
  }

  // Computes the next temperatures, and leaves the present ones as they are. Returns
  // the largest change on the whole plate.
  double compute() {
    swap_edges();
    double change = 0;
    for (int64_t r = 1; r <= rows(); ++r) {
      const std::span<const double> up = row(r - 1), here = row(r), down = row(r + 1);
      for (size_t c = 0; c < kColumns; ++c) {
        const double left = c > 0 ? here[c - 1] : 0;
        const double right = c + 1 < kColumns ? here[c + 1] : 0;
        const double flow = up[c] + down[c] + left + right - 4 * here[c];
        next_[static_cast<size_t>((r - 1) * kColumns) + c] = here[c] + kSpeed * flow;
        change = std::max(change, std::abs(kSpeed * flow));
      }
    }
    MPI_Allreduce(MPI_IN_PLACE, &change, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return change;
  }

  // Makes the next temperatures the present ones.
  void advance() { std::ranges::copy(next_, own_rows().begin()); }

 private:
  int64_t rows() const { return last_ - first_; }
  std::span<double> row(int64_t r) {
    return std::span(cells_).subspan(static_cast<size_t>(r * kColumns), kColumns);
  }
  std::span<double> own_rows() {
    return std::span(cells_).subspan(kColumns, static_cast<size_t>(rows() * kColumns));
  }

  // Sends the outermost rows to the neighbours, and receives theirs.
  void swap_edges() {
    const auto swap = [this](int64_t sent, int to, int64_t received, int from) {
      MPI_Sendrecv(row(sent).data(), kColumns, MPI_DOUBLE, to, 0, row(received).data(),
                   kColumns, MPI_DOUBLE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    };
    swap(1, above_, rows() + 1, below_);
    swap(rows(), below_, 0, above_);
  }

  int above_, below_;  // ranks
  int64_t first_, last_;
  std::vector<double> cells_, next_;
};

// Restores the newest step, if there is one. Returns the number of the next step.
Result<int64_t> resume(Job& job, const LocalPieces& pieces) {
  const Result<RestoredState> restored = job.resume(pieces);
  if (restored.ok()) return restored->step + 1;
  if (restored.error().code() != ErrorCode::kNotFound) return restored.error();
  HOLDFAST_TRY(job.attach(pieces));
  return 0;
}

Result<int> simulate(Env& env, const Path& run, int64_t steps) {
  const auto transport = HOLDFAST_TRY(start_mpi_transport(
      env, MPI_COMM_WORLD, env.now() + std::chrono::seconds(60)));
  const int rank = transport->rank(), ranks = transport->size();
  if (ranks > kRows) return invalid("{} ranks; expected at most {}", ranks, kRows);
  Plate plate(rank, ranks);
  const LocalPieces pieces = std::vector{plate.piece()};
  const auto job = HOLDFAST_TRY(
      Job::open(env, run, transport.get(), {.schedule = {.every = EverySteps{50}}}));
  for (int64_t step = HOLDFAST_TRY(resume(*job, pieces)); step < steps; ++step) {
    const double change = plate.compute();
    job->settle();  // waits until the last save is captured: now the plate changes
    plate.advance();
    if (rank == 0) {
      std::printf("%lld %a\n", static_cast<long long>(step), change);
      std::fflush(stdout);
    }
    const Due due = HOLDFAST_TRY(job->due(step));
    if (!due.save) continue;
    const SaveHandle saved = HOLDFAST_TRY(job->save({.step = step, .pieces = pieces}));
    if (!due.stop) continue;
    HOLDFAST_TRY(job->wait_stopped(saved));
    HOLDFAST_TRY(job->close());
    return kStoppedExit;
  }
  HOLDFAST_TRY(job->close());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 0;  // the transport calls MPI in a thread of its own
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
  if (argc != 3) {
    std::fprintf(stderr, "usage: heat RUN STEPS\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const auto env = make_posix_env();
  const Result<int> done = simulate(*env, argv[1], std::atoll(argv[2]));
  if (!done.ok()) {
    std::fprintf(stderr, "heat: %s\n", done.error().message().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return *done;
}

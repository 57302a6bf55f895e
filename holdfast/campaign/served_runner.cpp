// Trials that share a process. The program is started once. Each of its ranks connects
// to a socket whose path is in the variable HOLDFAST_CAMPAIGN, and speaks lines of JSON:
//
//   rank        {"rank": 0, "ranks": 1}                         once, first
//   campaign    {"trial": 7, "checkpoint": PATH, "log": PATH, "state": PATH or null}
//   rank        {"done": 7}, or {"failed": 7, "why": TEXT, "code": EXIT CODE}
//
// The campaign sends a request to all ranks and waits for the answers of all. A rank that
// closes its connection without an answer has failed. A rank ends when the campaign closes
// the connection.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "holdfast/base/json_fields.h"
#include "holdfast/campaign/trial_runner.h"
#include "holdfast/env/child.h"
#include "holdfast/env/errno_error.h"

namespace holdfast {
namespace {

// How long other ranks, and the program itself, may take to end after one rank has failed.
constexpr Duration kFailTogether = std::chrono::seconds(2);
constexpr size_t kMostLine = size_t{1} << 20;
constexpr int64_t kMostRanks = 4096;

// A descriptor that is closed by the destructor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }

 private:
  int number_;
};

// A socket in a folder that only this user may enter.
class Listener {
 public:
  static Result<std::unique_ptr<Listener>> create() {
    std::error_code failed;
    const Path temporary = std::filesystem::temp_directory_path(failed);
    std::string folder = ((failed ? Path("/tmp") : temporary) / "holdfast-XXXXXX");
    if (::mkdtemp(folder.data()) == nullptr)
      return errno_error(errno, "mkdtemp", folder);
    auto made = std::unique_ptr<Listener>(new Listener(folder));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (made->path().size() >= sizeof(address.sun_path)) {
      return invalid("{}: is too long for a socket; expected a shorter TMPDIR", folder);
    }
    std::memcpy(address.sun_path, made->path().c_str(), made->path().size());
    made->socket_ = Descriptor(
        ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int socket = made->socket_.number();
    if (socket < 0 ||
        ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(socket, 128) != 0) {
      return errno_error(errno, "socket", made->path());
    }
    return made;
  }
  ~Listener() {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }

  std::string path() const { return folder_ + "/campaign"; }
  int number() const { return socket_.number(); }

 private:
  explicit Listener(std::string folder) : folder_(std::move(folder)) {}

  const std::string folder_;
  Descriptor socket_;
};

// The connection of one rank.
struct RankLine {
  Descriptor socket;
  std::string read{};             // what has come of the next line
  std::optional<int64_t> ranks{};  // how many ranks there are, once it has said so
  bool answered = false;
  bool closed = false;
};

class ServedRunner : public TrialRunner {
 public:
  ServedRunner(Env& env, RunnerOptions options)
      : env_(env), options_(std::move(options)) {}
  ~ServedRunner() override { renew(); }

  Result<TrialEnd> run(const TrialFiles& files, Duration most,
                       const Stopped& stopped) override {
    if (!child_) {
      const TrialEnd started = HOLDFAST_TRY(start(stopped));
      if (started.kind != TrialEnd::Kind::kFinished) return started;
    }
    const Instant began = env_.now();
    files_ = files;
    send_request();
    Instant deadline = began + most;
    while (!all_answered()) {
      note_gone_rank();
      HOLDFAST_TRY(check_number());
      if (!failure_.empty()) deadline = std::min(deadline, failed_at_ + kFailTogether);
      const auto ended = child_->wait(Duration{0});
      // A rank that exits on purpose may still have an answer on its way.
      read_some(ended ? Duration{0} : deadline - env_.now());
      if (stopped()) return ended_as(TrialEnd::Kind::kStopped, began);
      if (all_answered()) break;
      if (ended) return died(*ended, began);
      if (env_.now() >= deadline) return given_up(began);
    }
    TrialEnd end{.seconds = seconds_since(env_, began)};
    if (failure_.empty()) return end;
    return failed_with_answer(end);
  }

  void renew() override {
    ranks_.clear();
    if (child_) {
      // A rank ends by itself when its connection is closed.
      const Instant deadline = env_.now() + kTrialGrace;
      while (!child_->wait(deadline - env_.now()) && env_.now() < deadline) {
      }
      child_->end(kTrialGrace);
    }
    child_.reset();
    listener_.reset();
  }

  bool is_running() const override { return child_.has_value(); }
  bool is_shared() const override { return true; }

 private:
  Path errors() const { return options_.work / "errors"; }

  Result<TrialEnd> start(const Stopped& stopped) {
    ranks_.clear();
    failure_.clear();
    failure_code_ = 0;
    is_gone_ = false;
    listener_ = HOLDFAST_TRY(Listener::create());
    child_.emplace(HOLDFAST_TRY(
        Child::start({.command = options_.command,
                      .environment = {{"HOLDFAST_CAMPAIGN", listener_->path()}},
                      .output = options_.work / "output",
                      .errors = errors()})));
    const Instant began = env_.now();
    Instant deadline = began + options_.start;
    while (!all_connected()) {
      note_gone_rank();
      HOLDFAST_TRY(check_number());
      if (!failure_.empty()) deadline = std::min(deadline, failed_at_ + kFailTogether);
      const auto ended = child_->wait(Duration{0});
      if (stopped()) return ended_as(TrialEnd::Kind::kStopped, began);
      if (ended) return died(*ended, began);
      if (env_.now() >= deadline) return not_connected(began);
      read_some(deadline - env_.now());
    }
    return TrialEnd{};
  }

  // How many ranks there are, by the first that has said so.
  std::optional<int64_t> announced() const {
    for (const RankLine& rank : ranks_) {
      if (rank.ranks) return rank.ranks;
    }
    return std::nullopt;
  }

  bool all_connected() const {
    return announced() && std::ssize(ranks_) == *announced() &&
           std::ranges::all_of(ranks_, [](const RankLine& r) { return r.ranks && !r.closed; });
  }

  int64_t open_ranks() const {
    return std::ranges::count(ranks_, false, &RankLine::closed);
  }

  // A rank that is not known would never be asked, so nothing of this job could be
  // believed.
  Result<void> check_number() {
    const auto count = announced();
    if (!count || open_ranks() <= *count) return {};
    const int64_t seen = open_ranks();
    (void)ended_as(TrialEnd::Kind::kFailed, env_.now());
    return invalid("{} ranks connected, and one says that there are {}; expected the same "
                   "number, as from the launcher or serve(ranks=)",
                   seen, *count);
  }

  // Finds a failure of which no rank tells: a rank that is gone.
  void note_gone_rank() {
    if (!failure_.empty()) return;
    if (std::ranges::none_of(
            ranks_, [](const RankLine& r) { return r.closed && !r.answered; })) {
      return;
    }
    failure_ = fmt::format("a rank closed its connection without an answer, {} of {} are left",
                           open_ranks(), announced().value_or(std::ssize(ranks_)));
    failed_at_ = env_.now();
    is_gone_ = true;
  }

  bool all_answered() const {
    return std::ranges::all_of(ranks_, &RankLine::answered);
  }

  void send_request() {
    trial_ += 1;
    failure_.clear();
    failure_code_ = 0;
    is_gone_ = false;
    JsonWriter request({.ascii = true});
    FieldWriter field(request, false);
    request.open('{');
    field("trial", trial_);
    field("checkpoint", files_.checkpoint.native());
    field("log", files_.log.native());
    field("state", files_.state ? std::optional(files_.state->native()) : std::nullopt);
    request.close();
    const std::string line = std::move(request).take() + "\n";
    for (RankLine& rank : ranks_) {
      rank.answered = false;
      // A rank that is gone is noticed by its closed connection.
      (void)::send(rank.socket.number(), line.data(), line.size(), MSG_NOSIGNAL);
    }
  }

  // Waits a short time for connections and lines, and takes them.
  void read_some(Duration most) {
    std::vector<pollfd> waiting{
        {.fd = listener_->number(), .events = POLLIN, .revents = 0}};
    for (const RankLine& rank : ranks_) {
      // poll() passes over negative numbers.
      const int number = rank.closed ? -1 : rank.socket.number();
      waiting.push_back({.fd = number, .events = POLLIN, .revents = 0});
    }
    const auto wait = std::clamp<Duration>(most, Duration{0}, kReadTime);
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(wait);
    if (::poll(waiting.data(), waiting.size(),
               static_cast<int>(milliseconds.count())) <= 0) {
      return;
    }
    const size_t known = ranks_.size();
    if (waiting[0].revents != 0) accept_all();
    for (size_t i = 0; i < known; ++i) {
      if (waiting[i + 1].revents != 0) receive(ranks_[i]);
    }
  }

  void accept_all() {
    while (std::ssize(ranks_) < kMostRanks) {
      Descriptor socket(::accept4(listener_->number(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.number() < 0) return;
      ranks_.push_back({.socket = std::move(socket)});
    }
  }

  void receive(RankLine& rank) {
    std::array<char, 1 << 12> some;
    const ssize_t count = ::recv(rank.socket.number(), some.data(), some.size(), 0);
    if (count < 0 && errno == EINTR) return;
    if (count <= 0 || rank.read.size() > kMostLine) {
      rank.closed = true;
      return;
    }
    rank.read.append(some.data(), static_cast<size_t>(count));
    for (size_t end = rank.read.find('\n'); end != std::string::npos;
         end = rank.read.find('\n')) {
      take_line(rank, rank.read.substr(0, end));
      rank.read.erase(0, end + 1);
    }
  }

  void take_line(RankLine& rank, const std::string& line) {
    const auto json = JsonDocument::parse(line, "answer");
    if (!json.ok()) return;
    const JsonPlace answer = json->root();
    const auto number = [&](const char* name) {
      const auto found = answer.find(name);
      int64_t value = 0;
      return found && found->read(value, kLeastInteger).ok() ? std::optional(value)
                                                             : std::nullopt;
    };
    if (const auto ranks = number("ranks")) rank.ranks = ranks;
    const auto failed = number("failed");
    if (number("done") == trial_ || failed == trial_) rank.answered = true;
    // What a rank says is more than that another one is gone.
    if (failed != trial_ || (!failure_.empty() && !is_gone_)) return;
    if (!is_gone_) failed_at_ = env_.now();
    is_gone_ = false;
    failure_ = answer.member_as<std::string>("why").value_or("it gave no reason");
    failure_ = without_paths(std::move(failure_), files_);
    failure_code_ = static_cast<int>(number("code").value_or(0));
  }

  // Ends the process, because it cannot serve another trial.
  TrialEnd ended_as(TrialEnd::Kind kind, Instant began) {
    TrialEnd end{.kind = kind, .seconds = seconds_since(env_, began)};
    end.how = fmt::format("did not end within {:.3g} s", end.seconds);
    ranks_.clear();
    child_->end(kTrialGrace);
    renew();
    return end;
  }

  TrialEnd failed_with_answer(TrialEnd end) const {
    end.kind = TrialEnd::Kind::kFailed;
    end.code = failure_code_;
    end.how = "the trial failed";
    end.said = failure_;
    return end;
  }

  TrialEnd given_up(Instant began) {
    // A rank that is gone may have said why.
    if (is_gone_) {
      failure_ = tail_of_errors(env_, errors(), files_) + "\n" + failure_;
    }
    const TrialEnd end = ended_as(TrialEnd::Kind::kTimedOut, began);
    return failure_.empty() ? end : failed_with_answer(end);
  }

  TrialEnd not_connected(Instant began) {
    if (!failure_.empty()) return given_up(began);
    const auto count = announced();
    const std::string seen = count ? fmt::format("{} of {} ranks", open_ranks(), *count)
                                   : fmt::format("{} ranks", open_ranks());
    TrialEnd end = ended_as(TrialEnd::Kind::kTimedOut, began);
    end.how = fmt::format("{} connected within {:.3g} s", seen, end.seconds);
    return end;
  }

  TrialEnd died(const ChildEnd& ended, Instant began) {
    TrialEnd end{.kind = TrialEnd::Kind::kFailed,
                 .code = ended.code,
                 .how = "the process ended with " + ended.text(),
                 .seconds = seconds_since(env_, began)};
    end.said = tail_of_errors(env_, errors(), files_);
    if (!failure_.empty() && !is_gone_) end.said = failure_;
    renew();
    return end;
  }

  // How often a waiting campaign looks at the process and whether it should stop.
  static constexpr Duration kReadTime = std::chrono::milliseconds(200);

  Env& env_;
  const RunnerOptions options_;
  std::unique_ptr<Listener> listener_;
  std::optional<Child> child_;
  std::vector<RankLine> ranks_;
  TrialFiles files_{};  // of the trial that runs
  int64_t trial_ = 0;
  std::string failure_;   // what the first rank that failed has said
  bool is_gone_ = false;  // whether that rank just closed its connection
  int failure_code_ = 0;
  Instant failed_at_{};
};

}  // namespace

std::unique_ptr<TrialRunner> make_served_runner(Env& env, RunnerOptions options) {
  return std::make_unique<ServedRunner>(env, std::move(options));
}

}  // namespace holdfast

#include "holdfast/env/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "holdfast/env/errno_error.h"

namespace holdfast {
namespace {

using ChildClock = std::chrono::steady_clock;

// The pointers that exec takes. The words must outlive them.
std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> merged_environment(
    const std::map<std::string, std::string>& added) {
  std::vector<std::string> words;
  for (char** word = environ; *word != nullptr; ++word) {
    const std::string_view text = *word;
    if (!added.contains(std::string(text.substr(0, text.find('='))))) {
      words.emplace_back(text);
    }
  }
  for (const auto& [name, value] : added) {
    words.push_back(fmt::format("{}={}", name, value));
  }
  return words;
}

// What posix_spawn does in the new process before the program begins.
class Preparation {
 public:
  Preparation() {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&attributes_);
  }
  ~Preparation() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // A group of its own, and no signal that this process ignores or blocks.
  void isolate() {
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setflags(
        &attributes_,
        POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }

  void open(int as, const char* path, int flags) {
    posix_spawn_file_actions_addopen(&files_, as, path, flags, 0666);
  }

  const posix_spawn_file_actions_t* files() const { return &files_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

// Empties a file, or creates it. Done here and not in the new process, so that an error
// names the file.
Result<void> make_empty(const std::optional<Path>& path) {
  if (!path) return {};
  const int file =
      ::open(path->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return errno_error(errno, "open", *path);
  ::close(file);
  return {};
}

// Waits for the end of a process, a signal, or the deadline.
void wait_for_process(int pid, ChildClock::time_point deadline) {
  const Duration left = std::max<Duration>(deadline - ChildClock::now(), Duration{0});
  constexpr auto kMost = std::chrono::milliseconds(1000);
  const auto milliseconds =
      std::min(std::chrono::ceil<std::chrono::milliseconds>(left), kMost);
  const auto process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) {  // a kernel without them
    ::poll(nullptr, 0, static_cast<int>(std::min<int64_t>(milliseconds.count(), 2)));
    return;
  }
  pollfd ended{.fd = process, .events = POLLIN, .revents = 0};
  ::poll(&ended, 1, static_cast<int>(milliseconds.count()));
  ::close(process);
}

Error not_started(int number, const std::string& program) {
  return errno_error(number, "start", program).within("a program cannot be started");
}

}  // namespace

std::string ChildEnd::text() const {
  if (signal == 0) return fmt::format("exit code {}", code);
  return fmt::format("signal {} ({})", signal, ::strsignal(signal));
}

Result<void> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (::access(name.c_str(), X_OK) == 0) return {};
    return not_started(errno, name);
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/bin:/usr/bin" : path;
  while (!rest.empty() && !name.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const Path file = Path(rest.substr(0, end)) / name;
    if (::access(file.c_str(), X_OK) == 0) return {};
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return not_started(ENOENT, name);
}

Result<Child> Child::start(const ChildOptions& options) {
  if (options.command.empty() || options.command[0].empty()) {
    return invalid("no program is named; expected a command");
  }
  HOLDFAST_TRY(make_empty(options.output));
  HOLDFAST_TRY(make_empty(options.errors));
  Preparation prepared;
  prepared.isolate();
  prepared.open(STDIN_FILENO, "/dev/null", O_RDONLY);
  if (options.output) {
    prepared.open(STDOUT_FILENO, options.output->c_str(), O_WRONLY | O_APPEND);
  }
  if (options.errors) {
    prepared.open(STDERR_FILENO, options.errors->c_str(), O_WRONLY | O_APPEND);
  }
  std::vector<std::string> words = options.command;
  std::vector<std::string> environment = merged_environment(options.environment);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, words[0].c_str(), prepared.files(),
                                    prepared.attributes(), pointers_to(words).data(),
                                    pointers_to(environment).data());
  if (failed != 0) return not_started(failed, words[0]);
  return Child(pid);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), ended_(other.ended_) {}

Child::~Child() {
  if (pid_ == 0 || ended_) return;
  ::kill(-pid_, SIGKILL);
  note_end(true);
}

bool Child::note_end(bool block) {
  if (ended_) return true;
  // The ended program keeps its number until waitpid(). So the group is ended before
  // that, while no other process can have the number.
  siginfo_t seen{};
  int failed = 0;
  do {
    failed = ::waitid(P_PID, static_cast<id_t>(pid_), &seen,
                      WEXITED | WNOWAIT | (block ? 0 : WNOHANG));
  } while (failed != 0 && errno == EINTR);
  if (failed == 0 && seen.si_pid == 0) return false;
  ::kill(-pid_, SIGKILL);
  int status = 0;
  pid_t waited = 0;
  do {
    waited = ::waitpid(pid_, &status, 0);
  } while (waited < 0 && errno == EINTR);
  ended_.emplace();
  // Where this process ignores SIGCHLD, the system keeps no exit code. An end that is not
  // known is no success.
  if (waited < 0) ended_->code = 255;
  if (WIFSIGNALED(status)) ended_->signal = WTERMSIG(status);
  if (WIFEXITED(status)) ended_->code = WEXITSTATUS(status);
  return true;
}

std::optional<ChildEnd> Child::wait(Duration most) {
  if (!note_end(false)) wait_for_process(pid_, ChildClock::now() + most);
  if (!note_end(false)) return std::nullopt;
  return ended_;
}

ChildEnd Child::end(Duration grace) {
  if (note_end(false)) return *ended_;
  ::kill(-pid_, SIGTERM);
  // A stopped process does not see the signal before it continues.
  ::kill(-pid_, SIGCONT);
  const ChildClock::time_point deadline = ChildClock::now() + grace;
  while (!note_end(false) && ChildClock::now() < deadline) {
    wait_for_process(pid_, deadline);
  }
  if (!ended_) ::kill(-pid_, SIGKILL);
  note_end(true);
  return *ended_;
}

}  // namespace holdfast

// Identifies a process on Linux, so that another process can tell later whether it still
// runs, and that its process id was not given to another program.
#include "holdfast/store/process.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "holdfast/base/json_text.h"
#include "holdfast/base/number_text.h"

namespace holdfast {
namespace {

// The fields of /proc/<pid>/stat that are used here.
struct Stat {
  int64_t pid = 0;
  char state = ' ';
  int64_t started = 0;  // clock ticks since the machine was booted
};

// `where` is the file or the variable that the text comes from.
Result<int64_t> parse_number(std::string_view text, std::string_view where) {
  if (const auto number = number_in<int64_t>(text)) return *number;
  return io_error("{}: a field is \"{}\"; expected a whole number", where, text);
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (space > 0) words.push_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return words;
}

// The format is described in proc(5): "pid (name) state ...". The name may contain
// spaces and parentheses, so the fields after it are counted from the last closing
// parenthesis.
Result<Stat> read_stat(Env& env, const Path& path) {
  constexpr size_t kStartTime =
      22 - 3;  // field 22; the first after the name is field 3
  const std::string text = HOLDFAST_TRY(env.read_text(path));
  const size_t open = text.find(" ("), close = text.rfind(')');
  if (open == text.npos || close == text.npos || close < open) {
    return io_error("{}: has no name in parentheses; expected \"pid (name) ...\"",
                    path.native());
  }
  const auto words = split(std::string_view(text).substr(close + 1));
  if (words.size() <= kStartTime) {
    return io_error("{}: {} fields after the name; expected more than {}",
                    path.native(), words.size(), kStartTime);
  }
  return Stat{.pid = HOLDFAST_TRY(parse_number(text.substr(0, open), path.native())),
              .state = words[0][0],
              .started = HOLDFAST_TRY(parse_number(words[kStartTime], path.native()))};
}

// A file of one line, without its end.
Result<std::string> read_line(Env& env, const Path& path) {
  std::string text = HOLDFAST_TRY(env.read_text(path));
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// A job's restart number is Slurm's restarts times this limit plus the restarts of the
// launcher (torchrun or our own), so that it grows with every restart. Both counts are
// below the limit.
constexpr int64_t kRestartLimit = 1'000'000;

// The count in the environment variable `name`, 0 if it is not set, and nullopt if its
// value is not a number from 0 to below the limit.
std::optional<int64_t> restarts_in(const Variables& variables,
                                   const std::string& name) {
  const std::string text = variables(name).value_or("0");
  const Result<int64_t> count = parse_number(text, name);
  if (!count.ok() || *count < 0 || *count >= kRestartLimit) return std::nullopt;
  return *count;
}

// The names of jobs are stored in owner.json and compared with later ones, so their form
// must not change. A name is empty if this scheduler has not started the process.
std::string slurm_job(const Variables& variables) {
  const std::string job = variables("SLURM_JOB_ID").value_or("");
  if (job.empty()) return "";
  const std::string cluster = variables("SLURM_CLUSTER_NAME").value_or("");
  const auto array = variables("SLURM_ARRAY_JOB_ID");
  const auto task = variables("SLURM_ARRAY_TASK_ID");
  const std::string name = array && task ? *array + "_" + *task : job;
  return cluster.empty() ? "slurm " + name
                         : fmt::format("slurm {} of {}", name, cluster);
}

std::string torchrun_job(const Variables& variables) {
  // "none" is torchrun's default, which jobs have that are not related.
  const std::string run = variables("TORCHELASTIC_RUN_ID").value_or("none");
  if (run.empty() || run == "none") return "";
  const std::string address = variables("MASTER_ADDR").value_or("");
  return address.empty() ? "torchrun " + run
                         : fmt::format("torchrun {} at {}", run, address);
}

std::string launched_job(const Variables& variables) {
  const std::string launch = variables("HOLDFAST_LAUNCH_ID").value_or("");
  return launch.empty() ? torchrun_job(variables) : "launch " + launch;
}

// Whether the process lives although /proc does not show it: mounted with hidepid=2, it
// shows each user only their own processes.
bool is_hidden(Env& env, int64_t pid) {
  const Result<std::string> mounts = env.read_text("/proc/mounts");
  if (!mounts.ok() || mounts->find("hidepid=") == std::string::npos) return false;
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
}

}  // namespace

// Empty if there is no scheduler, or if one of its variables cannot be read.
SchedulerJob scheduler_job(const Variables& variables) {
  const std::string slurm = slurm_job(variables);
  const std::string name = slurm.empty() ? launched_job(variables) : slurm;
  const auto by_slurm = restarts_in(variables, "SLURM_RESTART_COUNT");
  const bool ours = !variables("HOLDFAST_LAUNCH_ID").value_or("").empty();
  const auto by_launcher = restarts_in(
      variables, ours ? "HOLDFAST_GENERATION" : "TORCHELASTIC_RESTART_COUNT");
  if (name.empty() || !is_utf8(name) || !by_slurm || !by_launcher) return {};
  const int64_t before = slurm.empty() ? 0 : *by_slurm * kRestartLimit;
  return {.name = name, .restart = before + *by_launcher};
}

Result<Identity> this_process(Env& env, std::string job, int64_t restart) {
  const Stat stat = HOLDFAST_TRY(read_stat(env, "/proc/self/stat"));
  const Result<FileInfo> space = env.info("/proc/self/ns/pid");
  std::string host = HOLDFAST_TRY(read_line(env, "/proc/sys/kernel/hostname"));
  std::string boot = HOLDFAST_TRY(read_line(env, "/proc/sys/kernel/random/boot_id"));
  return Identity{.host = std::move(host),
                  .boot = std::move(boot),
                  .pid = stat.pid,
                  .started = stat.started,
                  .pid_space = space.ok() ? static_cast<int64_t>(space->inode) : 0,
                  .job = std::move(job),
                  .restart = restart};
}

Result<std::optional<int64_t>> start_of_process(Env& env, int64_t pid) {
  const Result<Stat> stat = read_stat(env, fmt::format("/proc/{}/stat", pid));
  if (!stat.ok()) {
    if (stat.error().code() != ErrorCode::kNotFound) return stat.error();
    if (!is_hidden(env, pid)) return std::optional<int64_t>();
    return unavailable("process {}: lives, but /proc hides it (hidepid)", pid);
  }
  const bool ended = stat->state == 'Z' || stat->state == 'X';
  return ended ? std::nullopt : std::optional(stat->started);
}

}  // namespace holdfast

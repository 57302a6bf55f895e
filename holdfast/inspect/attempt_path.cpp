#include "holdfast/inspect/attempt_path.h"

#include "holdfast/base/xxh3.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/process.h"

namespace holdfast {
namespace {

// One number that identifies a machine since its last start and its namespace of
// process numbers. Only a process with the same number can look up the process numbers
// of another.
uint64_t machine_of(const Identity& self) {
  const std::string text =
      fmt::format("{} {} {}", self.host, self.boot, self.pid_space);
  return xxh3_128(bytes_of(text)).low;
}

// The name of a file or folder while it is written:
// ".model.pt.00000000000004d2-0000000000012d68-3f9a61….tmp". It holds the number of
// this process, the process's start time, the machine, and a random number. Without
// /proc it holds only the random number.
std::string attempt_name(Env& env, const Path& target,
                         const std::optional<Identity>& self) {
  std::string name = fmt::format(".{}.", target.filename().native());
  if (self) {
    name += fmt::format("{}-{}-{}-", hex64(static_cast<uint64_t>(self->pid)),
                        hex64(static_cast<uint64_t>(self->started)),
                        hex64(machine_of(*self)));
  }
  return name + hex64(env.random64()) + ".tmp";
}

// True if the name is that of an attempt by a process on this machine that has ended.
bool is_abandoned(Env& env, std::string_view name, std::string_view prefix,
                  const Identity& self) {
  constexpr size_t kWord = 16;
  if (name.size() != prefix.size() + 4 * kWord + 3 + 4) return false;
  if (!name.starts_with(prefix) || !name.ends_with(".tmp")) return false;
  const auto word = [&](size_t i) {
    return parse_hex64(name.substr(prefix.size() + i * (kWord + 1), kWord));
  };
  const auto pid = word(0), started = word(1), machine = word(2);
  if (!pid || !started || machine != machine_of(self)) return false;
  const auto lives = start_of_process(env, static_cast<int64_t>(*pid));
  return lives.ok() && *lives != static_cast<int64_t>(*started);
}

// Removes what killed processes have left beside this target.
void sweep_attempts(Env& env, const Path& target, const Identity& self) {
  const Result<std::vector<std::string>> names = env.list(folder_of(target));
  if (!names.ok()) return;
  const std::string prefix = fmt::format(".{}.", target.filename().native());
  for (const std::string& name : *names) {
    if (!is_abandoned(env, name, prefix, self)) continue;
    static_cast<void>(env.remove_all(folder_of(target) / name));
  }
}

}  // namespace

Path choose_attempt(Env& env, const Path& to) {
  const Path target = to.has_filename() ? to : to.parent_path();
  const Result<Identity> process = this_process(env);
  const auto self = process.ok() ? std::optional(*process) : std::nullopt;
  if (self) sweep_attempts(env, target, *self);
  return folder_of(target) / attempt_name(env, target, self);
}

}  // namespace holdfast

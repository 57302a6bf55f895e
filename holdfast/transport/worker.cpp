#include "holdfast/transport/worker.h"

#include <unistd.h>

#include <array>

#include "holdfast/base/mutex.h"

namespace holdfast {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

// A random number of this process. A forked child gets another one.
uint64_t number_of_process(Env& env) {
  static Mutex mutex;
  static pid_t process = 0;
  static uint64_t number = 0;
  MutexLock lock(mutex);
  if (process != ::getpid()) {
    process = ::getpid();
    number = env.random64();
  }
  return number;
}

}  // namespace

Worker this_worker(Env& env) {
  Worker worker;
  worker.name = fmt::format("{}/{}/{:08x}", host_name(), ::getpid(),
                            number_of_process(env) >> 32);
  worker.host = host_name();
  const Result<std::string> boot = env.read_text("/proc/sys/kernel/random/boot_id");
  const Result<FileInfo> network = env.info("/proc/self/ns/net");
  if (!boot.ok() || !network.ok()) return worker;
  worker.host = fmt::format("{} {}", boot->substr(0, boot->find('\n')), network->inode);
  const Result<FileInfo> processes = env.info("/proc/self/ns/pid");
  if (processes.ok()) {
    worker.machine = fmt::format("{} {}", worker.host, processes->inode);
  }
  return worker;
}

}  // namespace holdfast

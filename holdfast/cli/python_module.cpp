#include "holdfast/cli/python_module.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "holdfast/base/json_place.h"

namespace holdfast {
namespace {

constexpr size_t kMostBytes = size_t{256} << 20;

// The path by which the program was called. In a virtual environment it may be a link to
// a program elsewhere, and the Python of the environment is beside the link.
std::filesystem::path called_path() {
  const auto* path = reinterpret_cast<const char*>(getauxval(AT_EXECFN));  // NOLINT
  return std::filesystem::path(path == nullptr ? "" : path);
}

std::string python_program() {
  const char* named = std::getenv("HOLDFAST_PYTHON");
  if (named != nullptr && *named != '\0') return named;
  std::error_code failed;
  const auto file = std::filesystem::read_symlink("/proc/self/exe", failed);
  for (const std::filesystem::path& self : {called_path(), file}) {
    const std::string beside = (self.parent_path() / "python3").native();
    if (!self.empty() && access(beside.c_str(), X_OK) == 0) return beside;
  }
  return "python3";
}

// Reads all that the child prints, and closes the pipe.
std::string read_all(int pipe) {
  std::string text;
  std::array<char, 1 << 16> some;
  while (text.size() < kMostBytes) {
    const ssize_t count = read(pipe, some.data(), some.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(some.data(), static_cast<size_t>(count));
  }
  close(pipe);
  return text;
}

// Runs the words, and returns what the process prints to stdout. Its stderr is ours.
Result<std::string> run_process(const std::vector<std::string>& words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return io_error("pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : words)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, words[0].c_str(), &actions, nullptr,
                                  arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failed != 0) {
    close(ends[0]);
    return unsupported(
        "{}: {}; expected a Python with torch (HOLDFAST_PYTHON names another)",
        words[0], std::strerror(failed));
  }
  std::string text = read_all(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return text;
}

}  // namespace

Result<std::string> describe_module(const std::string& module) {
  const std::string python = python_program();
  std::string text =
      HOLDFAST_TRY(run_process({python, "-m", "holdfast.module_layout", module}));
  const auto json = JsonDocument::parse(text, "the answer");
  if (!json.ok() || !json->root().is_object()) {
    return unsupported(
        "--module {}: {} -m holdfast.module_layout gave no answer; expected a Python "
        "in which \"import holdfast\" works (HOLDFAST_PYTHON names another)",
        module, python);
  }
  if (!json->root().find("error")) return text;
  return invalid("--module {}", json->root().member_as<std::string>("error").value_or(""));
}

Error become_python_verb(const std::string& verb,
                         const std::vector<std::string>& arguments) {
  std::vector<std::string> words{python_program(), "-m", "holdfast." + verb};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  return unsupported(
      "{}: {}: {}; expected a Python with torch (HOLDFAST_PYTHON names another)", verb,
      words[0], std::strerror(errno));
}

}  // namespace holdfast

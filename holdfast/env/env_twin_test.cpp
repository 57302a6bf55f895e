// Compares MemoryEnv with the machine's Env: random calls must give the same codes and
// leave the same files in both. So what crash tests show for MemoryEnv holds for the
// machine too.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"

namespace holdfast {
namespace {

// Every file and folder below, with what tells two of them apart.
std::map<std::string, std::string> tree_of(Env& env, const Path& folder) {
  std::map<std::string, std::string> tree;
  for (const std::string& name : env.list(folder).value()) {
    const FileInfo info = env.info(folder / name).value();
    if (!info.folder) {
      tree[name] =
          fmt::format("{} links, {}", info.links, *env.read_text(folder / name));
      continue;
    }
    tree[name] = "folder";
    for (const auto& [below, what] : tree_of(env, folder / name)) {
      tree[name + "/" + below] = what;
    }
  }
  return tree;
}

template <typename T>
std::string outcome(const Result<T>& result) {
  return std::string(result.ok() ? "ok" : name_of(result.error().code()));
}

std::string write(Env& env, const Path& path, OpenMode mode, const std::string& text) {
  const auto file = env.open(path, {.mode = mode});
  if (!file.ok()) return outcome(file);
  if (mode == OpenMode::kAppend) return outcome((*file)->append(bytes_of(text)));
  return outcome((*file)->write_at(static_cast<int64_t>(text.size()), bytes_of(text)));
}

// One call, the same for both Envs.
struct Step {
  uint64_t kind;
  std::string a, b, text;

  std::string run(Env& env, const Path& root) const {
    switch (kind) {
      case 0: return write(env, root / a, OpenMode::kCreate, text);
      case 1: return write(env, root / a, OpenMode::kTruncate, text);
      case 2: return write(env, root / a, OpenMode::kUpdate, text);
      case 3: return write(env, root / a, OpenMode::kAppend, text);
      case 4: return outcome(env.create_folder(root / a));
      case 5: return outcome(env.remove_folder(root / a));
      case 6: return outcome(env.remove_file(root / a));
      case 7: return outcome(env.rename(root / a, root / b));
      case 8: return outcome(env.rename_new(root / a, root / b));
      case 9: return outcome(env.link(root / a, root / b));
      case 10: return outcome(env.replace_file(root / a, bytes_of(text)));
      case 11: return outcome(env.create_folders(root / a));
      default: return outcome(env.remove_all(root / a));
    }
  }
};

Step random_step(std::mt19937& random) {
  static const std::vector<std::string> kPaths{"a",   "b",   "c",   "a/a",  "a/b",
                                               "b/a", "b/c", "c/a", "a/a/b"};
  const auto path = [&] { return kPaths[random() % kPaths.size()]; };
  // The last kind, which removes everything below, comes half as often as the others.
  const uint64_t kind = random() % 25 / 2;
  return {kind, path(), path(),
          std::string(random() % 5, static_cast<char>('a' + static_cast<int>(kind)))};
}

TEST(EnvTwinTest, MemoryBehavesLikeTheMachine) {
  const auto posix = make_posix_env();
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const TempFolder temp;
    MemoryEnv memory;
    std::mt19937 random(seed);
    for (int i = 0; i < 120; ++i) {
      const Step step = random_step(random);
      SCOPED_TRACE(fmt::format("seed {} step {}: kind {} {} {}", seed, i, step.kind,
                               step.a, step.b));
      ASSERT_EQ(step.run(memory, "/"), step.run(*posix, temp.path()));
      ASSERT_EQ(tree_of(memory, "/"), tree_of(*posix, temp.path()));
    }
  }
}

}  // namespace
}  // namespace holdfast

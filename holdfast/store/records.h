// What is recorded about a run and its steps, as plain data: the manifest of a step,
// which steps are kept, and which process writes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "holdfast/base/result.h"
#include "holdfast/contents/contents.h"
#include "holdfast/env/env.h"

namespace holdfast {

// One file of a step. The digest is "crc32c:9f8e7d6c" for a shard and "xxh3:<32
// digits>" for any other file.
struct ManifestFile {
  std::string name{};
  int64_t bytes = 0;
  std::string digest{};

  static void fields(auto& self, auto&& field) {  // base/json_fields.h
    field("name", self.name);
    field("bytes", self.bytes);
    field("digest", self.digest);
  }
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// The greatest epoch and the greatest sequence that are read. No run gets that far, and
// a hostile number above it could not be counted up.
inline constexpr int64_t kMostCommits = 1'000'000'000'000'000;

// The manifest of a checkpoint. It is written last, and its presence marks the
// checkpoint as committed. It names every file of the step with size and digest.
struct Manifest {
  int64_t step = 0;
  std::string run{};  // id of the run
  // Counts the owners of the run: grows each time a process takes the run over.
  int64_t epoch = 0;
  // Counts the commits of the run. The newer of two steps has the greater
  // (epoch, sequence).
  int64_t sequence = 0;
  uint64_t attempt = 0;
  int world = 1;           // number of ranks that wrote the checkpoint
  std::string parallel{};  // parallel configuration in the job's words; may be empty
  // Folder of the checkpoint that the job was resumed from; empty if there was none.
  std::string parent{};
  // Whether the schedule saved it while the default rule was in force. That rule
  // (Keep::only_temporary) removes only such steps.
  bool temporary = false;
  WallTime created{};
  std::map<std::string, std::string> software{};  // name to version
  std::map<std::string, double> metrics{};        // used by retention's `best` rule
  std::vector<ManifestFile> files{};
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// A step folder that cannot be used, and why.
struct SkippedStep {
  // The name of the folder in the run.
  std::string folder;
  Error error;
};

// How thoroughly a step is checked.
enum class Depth {
  // Checks the manifest, that every file is there with its size, and the digests of all
  // files but the shards.
  kFast,
  // Checks also every chunk of every shard.
  kFull,
};

enum class Best { kMin, kMax };

// Which steps are kept (retention.h). A step is kept if any rule keeps it, and the
// newest whole step is always kept.
struct Keep {
  // How many of the newest steps are kept. At least one is always kept.
  int64_t last = 3;
  // Keeps each step whose number is a multiple of this. If such a step was saved
  // several times, the last one is kept. 0 turns this rule off.
  int64_t every = 0;
  // How many steps with the best metric are kept. If two steps have the same metric,
  // the newer one is kept first. Nobody knows how good a step without this metric is,
  // so the same number of the newest steps without the metric is kept as well.
  int64_t best = 0;
  std::string metric{};
  Best order = Best::kMin;
  // Removes only steps that are marked as temporary (Manifest). This is the default of a
  // training: it never removes what somebody saved on purpose, or under other rules.
  bool only_temporary = false;
};

// A process, described so that another process can tell whether it still lives.
struct Identity {
  std::string host{};
  // Identifies the last start of the machine.
  std::string boot{};
  int64_t pid = 0;
  // When the process was started, in clock ticks since the start of the machine.
  int64_t started = 0;
  // Identifies the namespace of process numbers, because a container has its own. 0 if
  // it is not known.
  int64_t pid_space = 0;
  // The scheduler's job and how often it was restarted (SchedulerJob). Empty without
  // one.
  std::string job{};
  int64_t restart = 0;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// The job that this process belongs to, in the words of the scheduler or launcher. If
// the job is started again, perhaps on another host, the name stays and `restart` is
// greater.
struct SchedulerJob {
  // Empty if the job cannot be told.
  std::string name{};
  int64_t restart = 0;
  friend bool operator==(const SchedulerJob&, const SchedulerJob&) = default;
};

}  // namespace holdfast

// The disk inside MemoryEnv. It keeps files and names in two states: as everybody sees
// them now (live), and as a power loss would leave them (durable). Internal to env.
//
// Contents: a file has its live bytes, its durable bytes, and the list of changes
// (write, resize) between them; sync_file applies the list to the durable bytes.
//
// Names: every folder has live and durable entries, and the disk has one list of the
// changes between them. A change is atomic, also a rename, which sets two entries.
// sync_folder applies the changes that touch the folder, after the earlier changes of
// the same entries that they build on. All other changes can still be lost, wherever
// they are.
//
// A crash keeps all changes, none, or a random choice of them. A chosen change of names
// survives unless a change that it builds on was lost. Of a write, each 512-byte sector
// survives or not, independently; so does the growth of the file to the end of the
// write (sectors that are missing then read as zeros). The order of writes has no
// influence.
//
// Not thread safe: MemoryEnv locks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/env/memory_env.h"

namespace holdfast {

inline constexpr size_t kSectorBytes = 512;

// SplitMix64: small, and the same on every machine.
class Random64 {
 public:
  explicit Random64(uint64_t seed) : state_(seed) {}
  uint64_t next();
  bool coin() { return (next() >> 63) != 0; }

 private:
  uint64_t state_;
};

class MemoryDisk {
 public:
  struct Node;
  // Shared by the names of a file, the open files and both states of the disk.
  using NodePtr = std::shared_ptr<Node>;
  using Entries = std::map<std::string, NodePtr>;

  struct ContentChange {
    int64_t offset = 0;  // of a write, or the new size of a resize
    Bytes bytes;
    bool resize = false;
  };

  struct Node {
    uint64_t id = 0;
    bool folder = false;
    int64_t links = 0;    // live names
    Duration modified{};  // when contents were last written, by the disk's clock
    Bytes content, durable_content;
    std::vector<ContentChange> changes;
    Entries entries, durable_entries;
  };

  // One entry of a folder and the node that it becomes. A null node removes the entry.
  struct EntryChange {
    NodePtr folder;
    std::string name;
    NodePtr node;
  };

  MemoryDisk();

  const NodePtr& root() const { return root_; }
  NodePtr new_node(bool folder);
  // Bytes of all files that have a name.
  int64_t used() const { return used_; }

  // Changes names. All changes of one call are one atomic change.
  void change_entries(std::vector<EntryChange> changes);
  void sync_folder(Node& folder);

  void write(Node& file, int64_t offset, ByteView bytes);
  void resize(Node& file, int64_t size);
  void sync_file(Node& file);

  // The disk after a power loss. All that is left on it is durable.
  std::unique_ptr<MemoryDisk> after_crash(CrashPolicy policy) const;

 private:
  using Change = std::vector<EntryChange>;
  using Survivors = std::map<const Node*, Entries>;

  void apply_content(Node& file, ContentChange change);
  Survivors surviving_names(CrashPolicy policy, Random64& random) const;

  NodePtr root_;
  uint64_t last_id_ = 0;
  int64_t used_ = 0;
  std::vector<Change> changes_;
};

}  // namespace holdfast

// The disk inside MemoryEnv: files and names, each in two states, as everybody sees
// them now and as a power loss would leave them. Internal to base.
//
// Contents: a file has its live bytes, its durable bytes, and the list of changes
// (write, resize) between them; sync_file applies the list to the durable bytes.
//
// Names: every folder has live and durable entries, and the disk one list of the
// changes between them. A change is atomic, also a rename, which sets two entries.
// sync_folder applies the changes that touch the folder and, first, those that they
// build on (earlier ones of the same entries); all others stay volatile, wherever they
// are.
//
// A crash keeps all changes, none, or a random choice. Names: a chosen change survives
// unless one that it builds on was lost. Contents: each 512-byte sector of a write for
// itself, and whether the file has grown to the write's end for itself too (then
// missing sectors read as zeros); the choice knows no order between writes.
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

  // One entry of a folder and what it becomes; without a node it goes.
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

  // Changes of names, all of one call atomically.
  void change_entries(std::vector<EntryChange> changes);
  void sync_folder(Node& folder);

  void write(Node& file, int64_t offset, ByteView bytes);
  void resize(Node& file, int64_t size);
  void sync_file(Node& file);

  // The disk after a power loss; all that is left on it is durable.
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

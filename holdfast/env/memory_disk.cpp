// Records changes of a disk in memory, and chooses which of them survive a power loss.
#include <algorithm>
#include <set>
#include <utility>

#include "holdfast/env/memory_disk_internal.h"

namespace holdfast {
namespace {

using Node = MemoryDisk::Node;
using NodePtr = MemoryDisk::NodePtr;
using Entries = MemoryDisk::Entries;
using ContentChange = MemoryDisk::ContentChange;
using EntryChange = MemoryDisk::EntryChange;
// Which entries a change touches.
using Keys = std::set<std::pair<const Node*, std::string>>;

void put(Bytes& content, size_t offset, ByteView bytes) {
  content.resize(std::max(content.size(), offset + bytes.size()));
  std::copy(bytes.begin(), bytes.end(),
            content.begin() + static_cast<ptrdiff_t>(offset));
}

void replay(Bytes& content, const ContentChange& change) {
  const auto offset = static_cast<size_t>(change.offset);
  if (change.resize) {
    content.resize(offset);
  } else {
    put(content, offset, change.bytes);
  }
}

void replay(Entries& entries, const EntryChange& change) {
  if (change.node) {
    entries[change.name] = change.node;
  } else {
    entries.erase(change.name);
  }
}

bool touches(const std::vector<EntryChange>& change, const Keys& keys) {
  return std::any_of(change.begin(), change.end(), [&](const EntryChange& entry) {
    return keys.contains({entry.folder.get(), entry.name});
  });
}

bool touches(const std::vector<EntryChange>& change, const Node& folder) {
  return std::any_of(change.begin(), change.end(), [&](const EntryChange& entry) {
    return entry.folder.get() == &folder;
  });
}

void add_keys(Keys& keys, const std::vector<EntryChange>& change) {
  for (const EntryChange& entry : change) {
    keys.emplace(entry.folder.get(), entry.name);
  }
}

// Applies a random choice of the write's sectors, and by chance the growth of the file.
void apply_torn(Bytes& content, const ContentChange& write, Random64& random) {
  const auto offset = static_cast<size_t>(write.offset);
  const size_t end = offset + write.bytes.size();
  if (random.coin()) content.resize(std::max(content.size(), end));
  for (size_t at = offset; at < end;) {
    const size_t stop = std::min(end, (at / kSectorBytes + 1) * kSectorBytes);
    if (random.coin()) {
      put(content, at, ByteView(write.bytes).subspan(at - offset, stop - at));
    }
    at = stop;
  }
}

Bytes surviving_content(const Node& file, CrashPolicy policy, Random64& random) {
  if (policy.unsynced == Unsynced::kKept) return file.content;
  Bytes content = file.durable_content;
  if (policy.unsynced == Unsynced::kLost) return content;
  for (const ContentChange& change : file.changes) {
    if (!change.resize) {
      apply_torn(content, change, random);
    } else if (random.coin()) {
      replay(content, change);
    }
  }
  return content;
}

}  // namespace

uint64_t Random64::next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

MemoryDisk::MemoryDisk() : root_(new_node(true)) { root_->links = 1; }

NodePtr MemoryDisk::new_node(bool folder) {
  const NodePtr node = std::make_shared<Node>();
  node->id = ++last_id_;
  node->folder = folder;
  return node;
}

void MemoryDisk::change_entries(std::vector<EntryChange> changes) {
  for (const EntryChange& change : changes) {
    const auto old = change.folder->entries.find(change.name);
    if (old != change.folder->entries.end() && --old->second->links == 0) {
      used_ -= static_cast<int64_t>(old->second->content.size());
    }
    if (change.node && ++change.node->links == 1) {
      used_ += static_cast<int64_t>(change.node->content.size());
    }
    replay(change.folder->entries, change);
  }
  changes_.push_back(std::move(changes));
}

void MemoryDisk::sync_folder(Node& folder) {
  std::vector<Change> volatile_changes;
  std::vector<Change> committed;
  Keys keys;
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    if (touches(*change, folder) || touches(*change, keys)) {
      add_keys(keys, *change);
      committed.push_back(std::move(*change));
    } else {
      volatile_changes.push_back(std::move(*change));
    }
  }
  for (auto change = committed.rbegin(); change != committed.rend(); ++change) {
    for (const EntryChange& entry : *change)
      replay(entry.folder->durable_entries, entry);
  }
  std::reverse(volatile_changes.begin(), volatile_changes.end());
  changes_ = std::move(volatile_changes);
}

void MemoryDisk::apply_content(Node& file, ContentChange change) {
  const auto before = static_cast<int64_t>(file.content.size());
  replay(file.content, change);
  if (file.links > 0) used_ += static_cast<int64_t>(file.content.size()) - before;
  file.changes.push_back(std::move(change));
}

void MemoryDisk::write(Node& file, int64_t offset, ByteView bytes) {
  apply_content(file, {.offset = offset, .bytes = copy_of(bytes)});
}

void MemoryDisk::resize(Node& file, int64_t size) {
  apply_content(file, {.offset = size, .bytes = {}, .resize = true});
}

void MemoryDisk::sync_file(Node& file) {
  for (const ContentChange& change : file.changes) replay(file.durable_content, change);
  file.changes.clear();
}

// The entries that folders have after a crash. A folder that is not in the result keeps
// its durable entries.
MemoryDisk::Survivors MemoryDisk::surviving_names(CrashPolicy policy,
                                                  Random64& random) const {
  Survivors survivors;
  if (policy.unsynced == Unsynced::kLost) return survivors;
  Keys lost;
  for (const Change& change : changes_) {
    const bool chosen = policy.unsynced == Unsynced::kKept || random.coin();
    if (!chosen || touches(change, lost)) {
      add_keys(lost, change);
      continue;
    }
    for (const EntryChange& entry : change) {
      const Node* folder = entry.folder.get();
      replay(survivors.try_emplace(folder, folder->durable_entries).first->second,
             entry);
    }
  }
  return survivors;
}

std::unique_ptr<MemoryDisk> MemoryDisk::after_crash(CrashPolicy policy) const {
  Random64 random(policy.seed);
  const Survivors survivors = surviving_names(policy, random);
  auto disk = std::make_unique<MemoryDisk>();
  std::map<const Node*, NodePtr> copies{{root_.get(), disk->root_}};
  std::vector<const Node*> folders{root_.get()};
  while (!folders.empty()) {
    const Node* folder = folders.back();
    folders.pop_back();
    const auto found = survivors.find(folder);
    const Entries& entries =
        found == survivors.end() ? folder->durable_entries : found->second;
    for (const auto& [name, node] : entries) {
      NodePtr& copy = copies[node.get()];
      if (!copy) {
        copy = disk->new_node(node->folder);
        copy->content = surviving_content(*node, policy, random);
        copy->durable_content = copy->content;
        copy->modified = node->modified;
        if (node->folder) folders.push_back(node.get());
      }
      disk->change_entries({{copies[folder], name, copy}});
    }
  }
  for (const auto& [old, copy] : copies) copy->durable_entries = copy->entries;
  disk->changes_.clear();
  return disk;
}

}  // namespace holdfast

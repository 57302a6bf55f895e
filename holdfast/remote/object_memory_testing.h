// An object store in memory that can be made to fail at any call. Only for tests, and
// for one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/remote/object_store.h"

namespace holdfast {

class MemoryObjectStore : public ObjectStore {
 public:
  // The next `calls` calls succeed, and all calls after them fail. With `done`, the
  // first call that fails still does its work, as if only the answer were lost.
  void die_after(int64_t calls, bool done) {
    calls_left_ = calls;
    last_is_done_ = done;
  }
  void revive() { calls_left_.reset(); }
  int64_t calls() const { return calls_; }
  void set_clock(WallTime now) { now_ = now; }
  void forget_uploads() { lists_uploads_ = false; }

  const std::string& name() const override { return name_; }

  Result<void> put(const std::string& key, ByteView bytes) override {
    HOLDFAST_TRY(check_object_key(name_, key));
    return call([&] { objects_[key] = {copy_of(bytes), now_}; });
  }
  Result<std::unique_ptr<Upload>> begin_upload(const std::string& key,
                                               int64_t size) override {
    HOLDFAST_TRY(check_object_key(name_, key));
    const std::string id = std::to_string(++last_id_);
    HOLDFAST_TRY(call([&] { uploads_[id] = {key, id, now_}; }));
    return std::unique_ptr<Upload>(new MemoryUpload(*this, id, size));
  }
  Result<Bytes> get(const std::string& key, int64_t limit) override {
    HOLDFAST_TRY(call([] {}));
    const auto found = objects_.find(key);
    if (found == objects_.end()) return not_found("{}/{}: no such object", name_, key);
    if (static_cast<int64_t>(found->second.first.size()) > limit) {
      return invalid("{}/{}: more than {} bytes", name_, key, limit);
    }
    return found->second.first;
  }
  Result<std::unique_ptr<Source>> open(const std::string& key) override {
    Bytes bytes = HOLDFAST_TRY(get(key, kReadLimit));
    return std::unique_ptr<Source>(
        new MemorySource(name_ + "/" + key, std::move(bytes)));
  }
  Result<std::vector<ObjectInfo>> list(const std::string& prefix) override {
    HOLDFAST_TRY(call([] {}));
    std::vector<ObjectInfo> found;
    for (const auto& [key, object] : objects_) {
      if (!key.starts_with(prefix)) continue;
      found.push_back({key, static_cast<int64_t>(object.first.size()), object.second});
    }
    return found;
  }
  Result<void> remove(const std::string& key) override {
    return call([&] { objects_.erase(key); });
  }
  Result<std::vector<PendingUpload>> list_uploads(const std::string& prefix) override {
    HOLDFAST_TRY(call([] {}));
    if (!lists_uploads_) return unsupported("{}: lists no uploads", name_);
    std::vector<PendingUpload> found;
    for (const auto& [id, upload] : uploads_) {
      if (upload.key.starts_with(prefix)) found.push_back(upload);
    }
    return found;
  }
  Result<void> abort_upload(const PendingUpload& upload) override {
    return call([&] { uploads_.erase(upload.id); });
  }

 private:
  class MemoryUpload : public Upload {
   public:
    MemoryUpload(MemoryObjectStore& store, std::string id, int64_t want)
        : store_(store), id_(std::move(id)), want_(want) {}
    ~MemoryUpload() override {
      if (!over_) (void)abort();
    }

    Result<void> append(ByteView bytes) override { return sink_.append(bytes); }
    int64_t size() const override { return sink_.size(); }
    Result<void> finish() override {
      if (size() != want_) return invalid("{} bytes; expected {}", size(), want_);
      over_ = true;
      return store_.call([&] {
        store_.objects_[store_.uploads_.at(id_).key] = {sink_.bytes(), store_.now_};
        store_.uploads_.erase(id_);
      });
    }
    Result<void> abort() override {
      over_ = true;
      return store_.call([&] { store_.uploads_.erase(id_); });
    }

   private:
    MemoryObjectStore& store_;
    const std::string id_;
    const int64_t want_;
    MemorySink sink_;
    bool over_ = false;
  };

  Result<void> call(const std::function<void()>& work) {
    ++calls_;
    if (!calls_left_.has_value()) return work(), Result<void>();
    if (*calls_left_ > 0) return --*calls_left_, work(), Result<void>();
    if (last_is_done_) work();
    last_is_done_ = false;
    return unavailable("{}: dead", name_);
  }

  const std::string name_ = "memory://objects";
  std::map<std::string, std::pair<Bytes, WallTime>> objects_;
  std::map<std::string, PendingUpload> uploads_;
  std::optional<int64_t> calls_left_;
  bool last_is_done_ = false;
  bool lists_uploads_ = true;
  int64_t calls_ = 0;
  int last_id_ = 0;
  WallTime now_;
};

}  // namespace holdfast

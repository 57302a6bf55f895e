#include "holdfast/inspect/convert.h"

#include <atomic>

#include "holdfast/base/xxh3.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/location.h"
#include "holdfast/store/process.h"

namespace holdfast {
namespace {

// Counts the bytes read from all sources and reports the progress. A reader may read
// some bytes twice, so the reported progress stops at the total.
class Meter {
 public:
  Meter(const ConvertOptions& options, int64_t total)
      : options_(options), total_(total) {}

  void add(int64_t bytes) {
    const int64_t done = done_ += bytes;
    if (options_.progress) options_.progress(std::min(done, total_), total_);
  }
  bool stopped() const { return options_.stop && options_.stop(); }

 private:
  const ConvertOptions& options_;
  const int64_t total_;
  std::atomic<int64_t> done_ = 0;
};

class MeteredSource : public Source {
 public:
  MeteredSource(std::shared_ptr<const Source> inner, Meter& meter)
      : inner_(std::move(inner)), meter_(meter) {}

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    if (meter_.stopped())
      return unavailable("{}: the conversion was told to stop", name());
    HOLDFAST_TRY(inner_->read(offset, into));
    meter_.add(std::ssize(into));
    return {};
  }

 private:
  const std::shared_ptr<const Source> inner_;
  Meter& meter_;
};

// Fails if the format cannot store something that the values depend on.
Result<void> check_kept(const Contents& contents, const Format& format) {
  for (const Tensor& tensor : contents.collection.tensors()) {
    if (!format.keeps_dtype(tensor.dtype)) {
      return unsupported("{}: has the dtype {}, which {} does not support", tensor.name,
                         name_of(tensor.dtype), format.name);
    }
    if (!format.keeps_aliases && !tensor.aliases.empty()) {
      return unsupported("{}: has the alias {}, but {} does not support aliases",
                         tensor.name, tensor.aliases.front(), format.name);
    }
  }
  if (!format.keeps_objects && !contents.objects.none()) {
    return unsupported("{} stores only tensors, but the source has objects",
                       format.name);
  }
  return {};
}

// Names, in words, what the target does not keep and the values do not depend on.
std::vector<std::string> what_is_left_out(Env& env, const Found& from,
                                          const Contents& contents,
                                          const Format& format) {
  std::vector<std::string> words;
  for (const std::string& object : contents.simplified) {
    words.push_back("class of " + object);
  }
  if (!format.keeps_metadata) {
    for (const auto& [key, value] : contents.metadata) {
      words.push_back("metadata " + key);
    }
  }
  const Result<Manifest> manifest =
      from.step() ? read_manifest(env, from.path) : Result<Manifest>(Manifest());
  if (!manifest.ok()) return words;
  for (const ManifestFile& file : manifest->files) {
    // The objects that are the same on all ranks are converted.
    if (rank_of_objects(file.name).has_value()) words.push_back(file.name);
  }
  return words;
}

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

// Removes what killed conversions to this target have left.
void sweep_attempts(Env& env, const Path& target, const Identity& self) {
  const Result<std::vector<std::string>> names = env.list(folder_of(target));
  if (!names.ok()) return;
  const std::string prefix = fmt::format(".{}.", target.filename().native());
  for (const std::string& name : *names) {
    if (!is_abandoned(env, name, prefix, self)) continue;
    static_cast<void>(env.remove_all(folder_of(target) / name));
  }
}

Path choose_attempt(Env& env, const Path& to) {
  const Path target = to.has_filename() ? to : to.parent_path();
  const Result<Identity> process = this_process(env);
  const auto self = process.ok() ? std::optional(*process) : std::nullopt;
  if (self) sweep_attempts(env, target, *self);
  return folder_of(target) / attempt_name(env, target, self);
}

Result<void> write_found(Env& env, const ConvertOptions& options, const Found& from,
                         Converted& done) {
  Contents contents = HOLDFAST_TRY(open_found(env, from));
  HOLDFAST_TRY(check_kept(contents, *done.format).within(done.to.native()));
  done.left_out = what_is_left_out(env, from, contents, *done.format);
  done.tensors = std::ssize(contents.collection.tensors());
  done.bytes = contents.collection.bytes();
  Meter meter(options, done.bytes);
  for (auto& source : contents.sources) {
    source = std::make_shared<MeteredSource>(std::move(source), meter);
  }
  return write_file(env, done.to, contents,
                    {.format = done.format, .attempt = choose_attempt(env, done.to)});
}

}  // namespace

Result<Converted> convert(Env& env, const Path& from, const Path& to,
                          const ConvertOptions& options) {
  HOLDFAST_TRY(check_place(to));
  Converted done{.to = to};
  done.format = HOLDFAST_TRY(options.format.empty() ? format_for(to)
                                                    : find_format(options.format));
  done.from = HOLDFAST_TRY(use_any(env, from, [&](const Found& found) {
    return write_found(env, options, found, done);
  }));
  return done;
}

}  // namespace holdfast

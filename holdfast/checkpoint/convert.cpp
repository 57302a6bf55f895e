#include "holdfast/checkpoint/convert.h"

#include <atomic>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/store/place.h"

namespace holdfast {
namespace {

// Bytes read so far, of all sources. A reader that goes over some twice is done once.
class Meter {
 public:
  Meter(const Progress& progress, int64_t total) : progress_(progress), total_(total) {}

  void add(int64_t bytes) {
    const int64_t done = done_ += bytes;
    if (progress_) progress_(std::min(done, total_), total_);
  }

 private:
  const Progress& progress_;
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
    HOLDFAST_TRY(inner_->read(offset, into));
    meter_.add(std::ssize(into));
    return {};
  }

 private:
  const std::shared_ptr<const Source> inner_;
  Meter& meter_;
};

Result<void> check_kept(const Contents& contents, const Format& format) {
  for (const Tensor& tensor : contents.collection.tensors()) {
    if (!format.keeps_dtype(tensor.dtype)) {
      return unsupported("{}: {} has no {}", tensor.name, format.name,
                         name_of(tensor.dtype));
    }
    if (!format.keeps_ties && !tensor.ties.empty()) {
      return unsupported("{}: {} has no second names, such as {}", tensor.name,
                         format.name, tensor.ties.front());
    }
  }
  if (!format.keeps_objects && !contents.objects.none()) {
    return unsupported("{} holds tensors only, and there are objects", format.name);
  }
  return {};
}

std::vector<std::string> what_is_left_out(Env& env, const Found& from,
                                          const Contents& contents,
                                          const Format& format) {
  std::vector<std::string> words;
  if (!format.keeps_metadata) {
    for (const auto& [key, value] : contents.metadata) {
      words.push_back("metadata " + key);
    }
  }
  const Result<Manifest> manifest =
      from.step() ? read_manifest(env, from.path) : Result<Manifest>(Manifest());
  if (!manifest.ok()) return words;
  for (const ManifestFile& file : manifest->files) {
    // "rank-0000.objects.json", beside objects.json, which is of all ranks.
    if (file.name.ends_with(".objects.json")) words.push_back(file.name);
  }
  return words;
}

}  // namespace

Result<Converted> convert(Env& env, const Path& from, const Path& to,
                          const ConvertOptions& options) {
  HOLDFAST_TRY(check_place(to));
  const Format* format = HOLDFAST_TRY(
      options.format.empty() ? format_for(to) : find_format(options.format));
  Converted done{.from = HOLDFAST_TRY(find_any(env, from)), .to = to, .format = format};
  Contents contents = HOLDFAST_TRY(open_found(env, done.from));
  HOLDFAST_TRY(check_kept(contents, *format).within(to.native()));
  done.left_out = what_is_left_out(env, done.from, contents, *format);
  done.tensors = std::ssize(contents.collection.tensors());
  done.bytes = contents.collection.bytes();
  Meter meter(options.progress, done.bytes);
  for (auto& source : contents.sources) {
    source = std::make_shared<MeteredSource>(std::move(source), meter);
  }
  HOLDFAST_TRY(write_file(env, to, contents, format));
  return done;
}

}  // namespace holdfast

#include "holdfast/contents/selection.h"

#include <optional>

#include "holdfast/base/mutex.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/state/float_convert.h"

namespace holdfast {
namespace {

// The canonical bytes of one tensor or of a box of it, converted to another dtype if
// needed. Reads of a whole tensor, one
// after the other go through a stream, which checks the digest of the whole tensor at
// the end. Other reads go to the contents directly.
class TensorSource : public Source {
 public:
  TensorSource(std::shared_ptr<const Contents> contents, const Pick& pick)
      : contents_(std::move(contents)),
        tensor_(contents_->collection.tensor(pick.tensor)),
        id_(pick.tensor),
        box_(pick.part ? pick.part->first : Box::whole(tensor_.shape)),
        is_whole_(!pick.part),
        dtype_(pick.dtype) {}

  const std::string& name() const override { return tensor_.name; }
  int64_t size() const override { return box_.elements() * bytes_of(dtype_); }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    if (dtype_ == tensor_.dtype) return read_original(offset, into);
    // A range may begin and end inside an element. Whole elements are converted.
    const int64_t element = bytes_of(dtype_), original = bytes_of(tensor_.dtype);
    const int64_t first = offset / element;
    const int64_t last = (offset + std::ssize(into) + element - 1) / element;
    Bytes from(static_cast<size_t>((last - first) * original));
    HOLDFAST_TRY(read_original(first * original, from));
    Bytes converted(static_cast<size_t>((last - first) * element));
    convert_floats(tensor_.dtype, from, dtype_, converted);
    std::copy_n(converted.begin() + (offset - first * element), into.size(),
                into.begin());
    return {};
  }

 private:
  Result<void> read_original(int64_t offset, ByteSpan into) const {
    if (!is_whole_) return read_stream(*contents_, id_, box_, offset, into);
    const MutexLock lock(mutex_);
    if (offset == 0) {
      stream_.emplace(*contents_, id_);
      next_ = 0;
    }
    if (offset != next_) return read_canonical(*contents_, id_, offset, into);
    next_ += std::ssize(into);
    return stream_->read(into);
  }

  const std::shared_ptr<const Contents> contents_;
  const Tensor& tensor_;
  const TensorId id_;
  const Box box_;
  const bool is_whole_;
  const Dtype dtype_;
  mutable Mutex mutex_;
  // Continues at next_, which is -1 as long as there is no stream.
  mutable std::optional<CanonicalStream> stream_ HOLDFAST_GUARDED_BY(mutex_);
  mutable int64_t next_ HOLDFAST_GUARDED_BY(mutex_) = -1;
};

}  // namespace

Result<Contents> select_tensors(const std::shared_ptr<const Contents>& from,
                                std::span<const Pick> picks) {
  std::vector<Tensor> tensors;
  std::vector<Holder> holders;
  std::vector<std::shared_ptr<const Source>> sources;
  for (const Pick& pick : picks) {
    Tensor tensor = from->collection.tensor(pick.tensor);
    tensor.name = pick.name;
    tensor.aliases = pick.aliases;
    tensor.dtype = pick.dtype;
    if (pick.part) tensor.shape = pick.part->second;
    holders.push_back({.name = pick.name, .kind = HolderKind::kFile});
    tensors.push_back(std::move(tensor));
    sources.push_back(std::make_shared<TensorSource>(from, pick));
  }
  LayoutBuilder builder(tensors, std::move(holders));
  for (TensorId id = 0; id < tensors.size(); ++id) {
    builder.add(id, Box::whole(tensors[id].shape), id, 0);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Contents{.collection = HOLDFAST_TRY(
                      Collection::create(std::move(tensors), std::move(layout))),
                  .sources = std::move(sources),
                  .objects = Object(),
                  .metadata = {}};
}

}  // namespace holdfast

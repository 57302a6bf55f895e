#include "holdfast/formats/computed_views.h"

#include <algorithm>
#include <cstring>

#include "holdfast/base/mutex.h"
#include "holdfast/state/strided.h"

namespace holdfast {
namespace {

// If the elements of a view lie in at most this many bytes, these are read at once.
constexpr int64_t kMaxWindow = int64_t{64} << 20;

class ComputedViews : public Source {
 public:
  ComputedViews(std::shared_ptr<const Source> file,
                std::shared_ptr<const DigestCheck> digests,
                std::vector<ComputedView> views)
      : file_(std::move(file)),
        digests_(std::move(digests)),
        views_(std::move(views)),
        name_(file_->name() + " (computed views)") {
    for (const ComputedView& view : views_) {
      begins_.push_back(size_);
      size_ += view.shape.elements() * bytes_of(view.dtype);
    }
  }

  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    while (!into.empty()) {
      const auto next = std::ranges::upper_bound(begins_, offset);
      const auto number = static_cast<size_t>(next - begins_.begin()) - 1;
      const int64_t end = next == begins_.end() ? size_ : *next;
      const auto count = static_cast<size_t>(std::min(end - offset, std::ssize(into)));
      HOLDFAST_TRY(
          read_view(number, offset - begins_[number], into.subspan(0, count)));
      into = into.subspan(count);
      offset += static_cast<int64_t>(count);
    }
    return {};
  }

 private:
  // The bytes of the file in which the elements of a view lie.
  struct Window {
    size_t view = SIZE_MAX;
    std::shared_ptr<const Bytes> bytes{};  // shared with reads in other threads
  };

  Result<void> read_view(size_t number, int64_t first, ByteSpan into) const {
    const ComputedView& view = views_[number];
    const int64_t element = bytes_of(view.dtype);
    const ByteRange range = range_of(view.map, view.shape, element);
    if (digests_) HOLDFAST_TRY(digests_->check_record(0, range.first, true));
    std::shared_ptr<const Bytes> window;
    if (range.last - range.first <= kMaxWindow) {
      window = HOLDFAST_TRY(window_of(number, range));
    }
    const auto copy = [&](int64_t offset, ByteSpan part) -> Result<void> {
      if (!window) return file_->read(offset, part);
      std::memcpy(part.data(), window->data() + (offset - range.first), part.size());
      return {};
    };
    HOLDFAST_TRY(copy_runs(view, first, into, copy));
    apply_mask(view.mask, first, into);
    return {};
  }

  // Copies the runs of neighbouring bytes that the elements of the view form in the file.
  template <typename Copy>
  static Result<void> copy_runs(const ComputedView& view, int64_t first, ByteSpan into,
                                const Copy& copy) {
    int64_t run = bytes_of(view.dtype);
    int outer = view.shape.rank();
    const auto stride = [&](int k) { return view.map.strides[static_cast<size_t>(k)]; };
    while (outer > 0 && (view.shape[outer - 1] == 1 || stride(outer - 1) == run)) {
      run *= view.shape[--outer];
    }
    while (!into.empty()) {
      int64_t offset = view.map.offset + first % run;
      int64_t row = first / run;
      for (int k = outer; k-- > 0; row /= view.shape[k]) {
        offset += row % view.shape[k] * stride(k);
      }
      const auto count =
          static_cast<size_t>(std::min(run - first % run, std::ssize(into)));
      HOLDFAST_TRY(copy(offset, into.subspan(0, count)));
      into = into.subspan(count);
      first += static_cast<int64_t>(count);
    }
    return {};
  }

  static void apply_mask(ByteView mask, int64_t first, ByteSpan into) {
    if (mask.empty()) return;
    auto at = static_cast<size_t>(first) % mask.size();
    for (std::byte& byte : into) {
      byte ^= mask[at];
      at = at + 1 == mask.size() ? 0 : at + 1;
    }
  }

  Result<std::shared_ptr<const Bytes>> window_of(size_t view, ByteRange range) const {
    {
      MutexLock lock(mutex_);
      if (window_.view == view) return window_.bytes;
    }
    auto bytes = std::make_shared<const Bytes>(
        HOLDFAST_TRY(file_->read_bytes(range.first, range.last - range.first)));
    MutexLock lock(mutex_);
    window_ = {view, bytes};
    return std::shared_ptr<const Bytes>(std::move(bytes));
  }

  const std::shared_ptr<const Source> file_;
  const std::shared_ptr<const DigestCheck> digests_;
  const std::vector<ComputedView> views_;
  const std::string name_;
  std::vector<int64_t> begins_;  // where each view begins
  int64_t size_ = 0;
  mutable Mutex mutex_;
  mutable Window window_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<const Source> make_computed_views(
    std::shared_ptr<const Source> file, std::shared_ptr<const DigestCheck> digests,
    std::vector<ComputedView> views) {
  return std::make_shared<ComputedViews>(std::move(file), std::move(digests),
                                         std::move(views));
}

}  // namespace holdfast

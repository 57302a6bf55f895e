#include "holdfast/contents/assembled.h"

#include <algorithm>

#include "holdfast/env/source_sink.h"

namespace holdfast {
namespace {

// All parts of all tensors, one behind the other.
class AssembledSource : public Source {
 public:
  AssembledSource(std::string name, OnRead on_read)
      : name_(std::move(name)), on_read_(std::move(on_read)) {}

  void add(AssembledPart part) {
    if (part.bytes == 0) return;
    begins_.push_back(size_);
    size_ += part.bytes;
    parts_.push_back(std::move(part));
  }

  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    if (on_read_) HOLDFAST_TRY(on_read_(std::ssize(into)));
    auto at = static_cast<size_t>(std::ranges::upper_bound(begins_, offset) -
                                  begins_.begin());
    while (!into.empty()) {
      const AssembledPart& part = parts_[at - 1];
      const int64_t first = offset - begins_[at - 1];
      const auto count = static_cast<size_t>(
          std::min<int64_t>(std::ssize(into), part.bytes - first));
      HOLDFAST_TRY(part.read(first, into.first(count)));
      into = into.subspan(count);
      offset += static_cast<int64_t>(count);
      ++at;
    }
    return {};
  }

 private:
  const std::string name_;
  const OnRead on_read_;
  std::vector<AssembledPart> parts_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

}  // namespace

AssembledPart part_of_box(std::shared_ptr<const Contents> source, TensorId tensor,
                          const Box& box) {
  const Dtype dtype = source->collection.tensor(tensor).dtype;
  return {.bytes = box.elements() * bytes_of(dtype),
          .read = [source = std::move(source), tensor, box](int64_t first,
                                                            ByteSpan into) {
            return read_stream(*source, tensor, box, first, into);
          }};
}

AssembledPart part_of_bytes(Bytes bytes, int64_t times) {
  return {.bytes = std::ssize(bytes) * times,
          .read = [bytes = std::move(bytes)](int64_t first,
                                             ByteSpan into) -> Result<void> {
            auto at = static_cast<size_t>(first % std::ssize(bytes));
            while (!into.empty()) {
              const size_t count = std::min(into.size(), bytes.size() - at);
              std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), count,
                          into.begin());
              into = into.subspan(count);
              at = 0;
            }
            return {};
          }};
}

Result<Contents> assemble(std::string name, std::vector<AssembledTensor> tensors,
                          Object objects, OnRead on_read) {
  auto source = std::make_shared<AssembledSource>(name, std::move(on_read));
  std::vector<Tensor> own;
  std::vector<int64_t> offsets;
  for (AssembledTensor& each : tensors) {
    const int64_t begin = source->size();
    for (AssembledPart& part : each.parts) source->add(std::move(part));
    HOLDFAST_CHECK(source->size() - begin == each.tensor.bytes(),
                   "the parts of {} have {} bytes of {}", each.tensor.name,
                   source->size() - begin, each.tensor.bytes());
    offsets.push_back(begin);
    own.push_back(std::move(each.tensor));
  }
  LayoutBuilder builder(own, {{.name = std::move(name), .kind = HolderKind::kFile}});
  for (TensorId t = 0; t < own.size(); ++t) {
    builder.add(t, Box::whole(own[t].shape), 0, offsets[t]);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Contents{
      .collection = HOLDFAST_TRY(Collection::create(std::move(own), std::move(layout))),
      .sources = {std::move(source)},
      .objects = std::move(objects),
      .metadata = {}};
}

}  // namespace holdfast

#include "holdfast/contents/assembled.h"

#include <algorithm>

#include "holdfast/contents/chunked_source.h"

namespace holdfast {
namespace {

// All parts of all tensors, one behind the other. Its parts are ranges of bytes, and no
// chunks; but it says, as sources with chunks do, how much to ask for at once.
class AssembledSource : public ChunkedSource {
 public:
  explicit AssembledSource(std::string name) : name_(std::move(name)) {}

  void add(AssembledPart part) {
    if (part.bytes == 0) return;
    begins_.push_back(size_);
    size_ += part.bytes;
    parts_.push_back(std::move(part));
  }

  // The tensor that begins here should be read in parts of so many bytes.
  void read_ahead(int64_t offset, int64_t bytes) { ahead_[offset] = bytes; }

  bool has_chunks(int64_t) const override { return false; }
  Result<void> read_chunks(int64_t, const Box&, const Map&, ByteSpan) const override {
    return unsupported("{}: has no chunks", name_);
  }
  int64_t best_part(int64_t offset) const override {
    const auto found = ahead_.find(offset);
    return found == ahead_.end() ? 0 : found->second;
  }
  bool is_stored(int64_t) const override { return true; }

  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
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
  std::vector<AssembledPart> parts_;
  std::vector<int64_t> begins_;
  std::map<int64_t, int64_t> ahead_;
  int64_t size_ = 0;
};

}  // namespace

AssembledPart part_of_box(ReadForFile read, HolderId file, TensorId tensor, Dtype dtype,
                          const Box& box) {
  return {.bytes = box.elements() * bytes_of(dtype),
          .read = [read = std::move(read), file, tensor, box](int64_t first,
                                                              ByteSpan into) {
            return read(file, tensor, box, first, into);
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
                          Object objects) {
  auto source = std::make_shared<AssembledSource>(name);
  std::vector<Tensor> own;
  std::vector<int64_t> offsets;
  for (AssembledTensor& each : tensors) {
    const int64_t begin = source->size();
    if (each.ahead > 0) source->read_ahead(begin, each.ahead);
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

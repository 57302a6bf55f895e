#include "holdfast/corruption/live_contents.h"

#include "holdfast/env/source_sink.h"

namespace holdfast {
namespace {

// The stream of a piece (box_stream.h) as a file.
class PieceSource : public Source {
 public:
  explicit PieceSource(LocalPiece piece) : piece_(std::move(piece)) {}

  const std::string& name() const override { return piece_.tensor->name; }
  int64_t size() const override { return piece_.bytes(); }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    return read_piece(piece_, offset, into);
  }

 private:
  const LocalPiece piece_;
};

}  // namespace

Result<Contents> live_contents(const LocalPieces& pieces) {
  std::vector<Tensor> tensors;
  std::vector<Holder> holders;
  std::vector<std::shared_ptr<const Source>> sources;
  for (const LocalPiece& piece : pieces) {
    const Tensor& tensor = *piece.tensor;
    if (piece.box != Box::whole(tensor.shape)) {
      return unsupported(
          "{}: this rank holds {} of {}; expected the whole tensor, or a plan that "
          "holdfast inject --save-plan has made of a checkpoint",
          tensor.name, to_string(piece.box), to_string(tensor.shape));
    }
    tensors.push_back(tensor);
    holders.push_back({.name = fmt::format("memory {}", holders.size()),
                       .kind = HolderKind::kMemory});
    sources.push_back(std::make_shared<PieceSource>(piece));
  }
  LayoutBuilder builder(tensors, std::move(holders));
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), t, 0);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Contents{
      .collection = HOLDFAST_TRY(Collection::create(std::move(tensors), layout)),
      .sources = std::move(sources),
      .objects = {},
      .metadata = {}};
}

}  // namespace holdfast

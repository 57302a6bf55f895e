// The parity files of a step, as a source of right bytes.
#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/repair/copy_source.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/shard/parity.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"

namespace holdfast {
namespace {

// A shard that cannot be opened: all of it is lost.
class LostSource : public Source {
 public:
  explicit LostSource(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  int64_t size() const override { return 0; }

 protected:
  Result<void> read_inside(int64_t, ByteSpan) const override { return {}; }

 private:
  const std::string name_;
};

bool has_file(const StepParts& step, const std::string& name) {
  return std::ranges::count(step.manifest.files, name, &ManifestFile::name) > 0;
}

class ParityCopies : public CopySource {
 public:
  explicit ParityCopies(Env& env) : env_(env) {}

  std::string_view rung() const override { return "parity"; }
  const std::string& name() const override { return name_; }

  Result<Bytes> read_chunk(const WantedChunk& wanted) override {
    const std::string& shard = wanted.shard.name;
    if (!has_file(wanted.step, parity_name(shard))) {
      return not_found("the shard was saved without parity");
    }
    const ParityReader reader = HOLDFAST_TRY(open(wanted.step, shard));
    const Path path = wanted.step.folder / shard;
    Result<std::unique_ptr<FileSource>> file = FileSource::open(env_, path);
    const LostSource lost(path.native());
    const ByteExtent place = place_of(wanted.shard, wanted.number);
    return reader.recover(file.ok() ? static_cast<const Source&>(**file) : lost,
                          place.offset, place.bytes);
  }

  // A parity file is computed again from its shard.
  Result<Bytes> read_file(const StepParts& step, const ManifestFile& file) override {
    const auto shard = shard_of_parity(file.name);
    if (!shard) return not_found("has no parity of this file");
    const auto source = HOLDFAST_TRY(FileSource::open(env_, step.folder / *shard));
    const auto shapes = HOLDFAST_TRY(possible_shapes(step, *shard, file, *source));
    for (const ParityShape& shape : shapes) {
      Bytes parity = HOLDFAST_TRY(encode_parity(*source, shape));
      if (crc_digest(crc32c(parity)) == file.digest) return parity;
    }
    if (!shapes.empty()) return corrupt("the parity of the shard has another digest");
    return not_found("the header is damaged, and its share of parity is not known");
  }

 private:
  Result<ParityReader> open(const StepParts& step, const std::string& shard) {
    return ParityReader::open(
        HOLDFAST_TRY(FileSource::open(env_, step.folder / parity_name(shard))));
  }

  // The shapes that a damaged parity file may have had: that of its header, or, if that is
  // damaged, all with which a usual share gives a file of this size. The digest decides.
  Result<std::vector<ParityShape>> possible_shapes(const StepParts& step,
                                                   const std::string& shard,
                                                   const ManifestFile& file,
                                                   const Source& source) {
    const Result<ParityReader> reader = open(step, shard);
    if (reader.ok() && reader->shape().file_bytes == source.size()) {
      return std::vector{reader->shape()};
    }
    std::vector<ParityShape> shapes;
    for (int i = 50; i <= 5000; ++i) {
      const ParityShape shape = HOLDFAST_TRY(parity_shape(i / 10'000.0, source.size()));
      const bool known = std::ranges::count(shapes, shape) > 0;
      if (shape.parity_bytes() == file.bytes && !known) shapes.push_back(shape);
    }
    return shapes;
  }

  Env& env_;
  const std::string name_ = "parity";
};

}  // namespace

std::unique_ptr<CopySource> copies_by_parity(Env& env) {
  return std::make_unique<ParityCopies>(env);
}

}  // namespace holdfast

#include "holdfast/formats/keras.h"

#include <algorithm>

#include "holdfast/archive/zip_writer.h"
#include "holdfast/contents/checked_source.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/formats/zip_patch.h"
#include "holdfast/formats/zip_verify.h"
#include "holdfast/hdf5/hdf5.h"

namespace holdfast {
namespace {

constexpr std::string_view kWeightsRecord = "model.weights.h5";
constexpr std::string_view kJsonRecords[] = {"config.json", "metadata.json"};
constexpr int64_t kMaxKerasJson = int64_t{64} << 20;

Result<ZipArchive> open_keras_archive(std::shared_ptr<const Source> source) {
  return ZipArchive::open(std::move(source), {.deflated = true});
}

Result<const ZipEntry*> find_weights(const ZipArchive& archive) {
  const ZipEntry* entry = archive.find(kWeightsRecord);
  if (entry != nullptr) return entry;
  return unsupported("{}: has no record {}; expected a file of Keras",
                     archive.source().name(), kWeightsRecord);
}

// All weights are in one record, so a wrong CRC may mean any of them.
class WeightsDigest : public DigestCheck {
 public:
  explicit WeightsDigest(std::shared_ptr<const CheckedSource> weights)
      : weights_(std::move(weights)) {}
  Result<void> check_record(HolderId holder, int64_t, bool whole) const override {
    return weights_->check_record(holder, 0, whole);
  }

 private:
  // Shared with the sources of the tensors, which read from it.
  const std::shared_ptr<const CheckedSource> weights_;
};

std::shared_ptr<const CheckedSource> open_checked(const ZipArchive& archive,
                                                  const ZipEntry& entry) {
  auto record = archive.open_record(entry);
  const int64_t size = record->size();
  std::vector<CheckedRecord> records{
      {.name = "the record", .size = size, .crc = entry.crc}};
  return std::make_shared<CheckedSource>(std::move(record), std::move(records),
                                         crc32_extend);
}

// The record of an archive that is being written, as a Sink of its own.
class RecordSink : public Sink {
 public:
  explicit RecordSink(ZipWriter& zip) : zip_(zip) {}
  Result<void> append(ByteView bytes) override {
    size_ += std::ssize(bytes);
    return zip_.append(bytes);
  }
  int64_t size() const override { return size_; }

 private:
  ZipWriter& zip_;
  int64_t size_ = 0;
};

// Records that are neither weights nor JSON, such as the vocabulary of a layer, cannot be
// read.
void leave_out_other_records(const ZipArchive& archive, Contents& contents) {
  for (const ZipEntry& entry : archive.entries()) {
    if (entry.name == kWeightsRecord || entry.name.ends_with('/') ||
        contents.metadata.contains(entry.name)) {
      continue;
    }
    contents.left_out.push_back(fmt::format(
        "{}: is no record of weights; expected only tensors beside the configuration",
        entry.name));
  }
}

// Makes the CRCs right for everything that was changed in the records.
Result<void> write_crcs(const ZipArchive& archive, FileEdit& edit) {
  ZipCrcEdit crcs(archive, edit);
  for (const Change& change : edit.patch().changes) {
    Bytes mask = change.before;
    for (size_t i = 0; i < mask.size(); ++i) mask[i] ^= change.after[i];
    crcs.add(change.offset, mask);
  }
  return crcs.write();
}

}  // namespace

bool is_keras_archive(std::span<const std::string> names) {
  return std::ranges::find(names, kWeightsRecord) != names.end();
}

Result<Contents> open_keras(std::shared_ptr<const Source> source) {
  const ZipArchive archive = HOLDFAST_TRY(open_keras_archive(std::move(source)));
  const ZipEntry* weights = HOLDFAST_TRY(find_weights(archive));
  const auto checked = open_checked(archive, *weights);
  Contents contents = HOLDFAST_TRY(open_hdf5(checked));
  contents.digests = std::make_shared<WeightsDigest>(checked);
  for (const std::string_view name : kJsonRecords) {
    const ZipEntry* entry = archive.find(name);
    if (entry == nullptr) continue;
    const Bytes text = HOLDFAST_TRY(archive.read(*entry, kMaxKerasJson));
    contents.metadata.emplace(name, text_of(text));
  }
  leave_out_other_records(archive, contents);
  return contents;
}

Result<void> write_keras(Sink& sink, const Contents& contents) {
  if (!contents.left_out.empty()) {
    return unsupported("keras: a model needs all of its parts, but {}",
                       contents.left_out.front());
  }
  ZipWriter zip(sink);
  Contents weights = contents;
  for (const std::string_view name : kJsonRecords) {
    const auto text = weights.metadata.extract(std::string(name));
    if (!text) {
      return unsupported(
          "keras: the contents have no {}; expected those of a .keras file", name);
    }
    HOLDFAST_TRY(zip.add(name, bytes_of(text.mapped())));
  }
  HOLDFAST_TRY(zip.begin(kWeightsRecord, HOLDFAST_TRY(measure_hdf5(weights))));
  RecordSink record(zip);
  HOLDFAST_TRY(write_hdf5(record, weights));
  HOLDFAST_TRY(zip.end());
  return zip.finish();
}

Result<Patch> plan_keras_patch(Env& env, const Path& path, std::span<const Flip> flips,
                               Checksums checksums) {
  const ZipArchive archive =
      HOLDFAST_TRY(open_keras_archive(HOLDFAST_TRY(FileSource::open(env, path))));
  const ZipEntry* weights = HOLDFAST_TRY(find_weights(archive));
  if (weights->deflated) {
    return unsupported("{}: {} is deflated; expected it stored, as Keras writes it",
                       path.native(), kWeightsRecord);
  }
  PatchPlan plan(env, path);
  FileEdit* edit = HOLDFAST_TRY(plan.edit(path));
  const Hdf5Edit part{.file = edit, .begin = weights->offset, .may_grow = false};
  HOLDFAST_TRY(edit_hdf5(part, archive.open_record(*weights), flips, checksums));
  if (checksums == Checksums::kConsistent) HOLDFAST_TRY(write_crcs(archive, *edit));
  return std::move(plan).finish();
}

Result<FormatReport> verify_keras(std::shared_ptr<const Source> source,
                                  const Progress& progress) {
  const ZipArchive archive = HOLDFAST_TRY(open_keras_archive(source));
  const ZipEntry* weights = HOLDFAST_TRY(find_weights(archive));
  FormatReport report = HOLDFAST_TRY(verify_zip(archive, nullptr, progress));
  // If the weights are too damaged to be opened, their tensors are not known.
  const Result<Contents> contents = open_keras(std::move(source));
  for (Damage& damage : report.damage) {
    if (damage.offset != weights->offset || !contents.ok()) continue;
    for (const Tensor& tensor : contents->collection.tensors()) {
      damage.tensors.push_back(tensor.name);
    }
  }
  return report;
}

}  // namespace holdfast

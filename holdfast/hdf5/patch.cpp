// Changes bits of HDF5 files, and finds all damage.
//
// Elements that lie plainly in the file change in place. A chunk with filters is
// decoded, changed and encoded anew, once for all flips in it. It stays in its place if
// it fits there, with its new size in the index of chunks. If it does not fit, it goes
// to the end of the file, and the index and the superblock change too.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "holdfast/contents/file_edit.h"
#include "holdfast/hdf5/hdf5.h"
#include "holdfast/hdf5/lookup3.h"
#include "holdfast/hdf5/tree_internal.h"

namespace holdfast {
namespace {

using hdf5::Chunk;
using hdf5::Dataset;
using hdf5::OpenedFile;
using hdf5::Storage;

class Hdf5Patcher {
 public:
  Hdf5Patcher(const OpenedFile& opened, const Hdf5Edit& edit, Checksums checksums)
      : opened_(opened), edit_(edit), checksums_(checksums) {}

  Result<void> flip(const PlacedFlip& at) {
    const Dataset& dataset = *opened_.datasets[at.tensor];
    if (dataset.storage == Storage::kPlain) return flip_plain(dataset, at);
    const int64_t element = (at.offset - opened_.decoded->dataset_at(at.offset).begin) /
                            dataset.element_bytes();
    if (dataset.storage == Storage::kNone) return refuse_unwritten(dataset, element);
    const auto [number, inside] = hdf5::chunk_of(dataset, element);
    const auto found = dataset.chunks.find(number);
    if (found == dataset.chunks.end()) return refuse_unwritten(dataset, element);
    if (is_plain(dataset, found->second)) {
      return flip_bytes(dataset, found->second.offset + inside, at.mask);
    }
    hits_[{at.tensor, number}].push_back({inside, copy_of(at.mask)});
    return {};
  }

  Result<void> finish() {
    for (const auto& [chunk, hits] : hits_) {
      HOLDFAST_TRY(encode(*opened_.datasets[chunk.first], chunk.second, hits));
    }
    // The checksum of an index is no checksum of a tensor, so it stays right.
    for (const auto& [block, bytes] : index_blocks_) {
      HOLDFAST_TRY(sum_block(block, bytes));
    }
    if (checksums_ == Checksums::kRaw) return {};
    for (const auto& [block, bytes] : headers_) HOLDFAST_TRY(sum_block(block, bytes));
    return {};
  }

 private:
  // A change of one element of a chunk: its first byte, and the mask.
  struct Hit {
    int64_t inside;
    Bytes mask;
  };

  static Error refuse_unwritten(const Dataset& dataset, int64_t element) {
    return unsupported(
        "{}: element {} was never written and has the fill value; expected one that "
        "has "
        "bytes in the file",
        dataset.where, element);
  }

  // Whether the elements of a chunk lie in the file as they are.
  static bool is_plain(const Dataset& dataset, const Chunk& chunk) {
    for (size_t i = 0; i < dataset.filters.size(); ++i) {
      if (hdf5::is_applied(chunk.mask, i)) return false;
    }
    return true;
  }

  Result<void> flip_plain(const Dataset& dataset, const PlacedFlip& at) {
    if (dataset.header_block_bytes > 0) {
      headers_.emplace(dataset.header_block, dataset.header_block_bytes);
    }
    return flip_bytes(dataset, at.offset, at.mask);
  }

  Result<void> flip_bytes(const Dataset& dataset, int64_t offset, ByteView mask) {
    std::array<std::byte, 16> turned{};
    std::ranges::copy(mask, turned.begin());
    const auto bytes = ByteSpan(turned).first(mask.size());
    hdf5::swap_numbers(bytes, dataset.type.swapped);
    return edit_.file->flip(edit_.begin + offset, bytes);
  }

  Result<void> encode(const Dataset& dataset, int64_t number,
                      const std::vector<Hit>& hits) {
    const Chunk& chunk = dataset.chunks.at(number);
    Bytes old = HOLDFAST_TRY(hdf5::read_chunk(*opened_.file.source(), dataset, number));
    Bytes elements = old;
    for (const Hit& hit : hits) {
      for (size_t i = 0; i < hit.mask.size(); ++i) {
        elements[static_cast<size_t>(hit.inside) + i] ^= hit.mask[i];
      }
    }
    if (elements == old) return {};
    hdf5::swap_numbers(elements, dataset.type.swapped);
    hdf5::swap_numbers(old, dataset.type.swapped);
    const bool raw = checksums_ == Checksums::kRaw;
    const Bytes stored =
        hdf5::encode_chunk(dataset.filters, chunk.mask, elements, raw ? &old : nullptr);
    HOLDFAST_TRY(std::ssize(stored) <= chunk.bytes
                     ? edit_.file->write(edit_.begin + chunk.offset, stored)
                     : append(dataset, number, stored));
    if (chunk.index_block_bytes > 0) {
      index_blocks_.emplace(chunk.index_block, chunk.index_block_bytes);
    }
    return put(chunk.size_field, stored.size(), chunk.size_bytes);
  }

  // Writes a chunk to the end of the file, because it does not fit into its place.
  Result<void> append(const Dataset& dataset, int64_t number, ByteView stored) {
    const Chunk& chunk = dataset.chunks.at(number);
    if (!edit_.may_grow) {
      return unsupported(
          "{}: chunk {} has {} bytes after the change, but room for {}; expected an "
          "HDF5 "
          "file that is no part of another file",
          dataset.where, number, stored.size(), chunk.bytes);
    }
    const hdf5::File& file = opened_.file;
    const int64_t at = edit_.file->size() - edit_.begin;
    HOLDFAST_TRY(edit_.file->write(edit_.begin + at, stored));
    const auto address = static_cast<uint64_t>(at - file.base());
    HOLDFAST_TRY(put(chunk.address_field, address, file.sizes().offset));
    const uint64_t end = address + stored.size() + file.end_base();
    HOLDFAST_TRY(put(file.end_field(), end, file.sizes().offset));
    // The checksum of the superblock is no checksum of a tensor, so it stays right.
    return file.superblock_version() < 2
               ? Result<void>()
               : sum_block(file.base(), file.superblock_bytes());
  }

  Result<void> put(int64_t offset, uint64_t value, size_t bytes) {
    std::array<std::byte, 8> number{};
    store_little_endian(value, ByteSpan(number));
    return edit_.file->write(edit_.begin + offset, ByteView(number).first(bytes));
  }

  // Makes the checksum in the last four bytes of a block right.
  Result<void> sum_block(int64_t block, int64_t bytes) {
    const Bytes edited =
        HOLDFAST_TRY(edit_.file->read_bytes(edit_.begin + block, bytes - 4));
    return put(block + bytes - 4, hdf5::lookup3(edited), 4);
  }

  const OpenedFile& opened_;
  const Hdf5Edit& edit_;
  const Checksums checksums_;
  std::map<std::pair<TensorId, int64_t>, std::vector<Hit>> hits_;
  // Blocks with checksums that are changed: headers that have elements, and indexes.
  std::set<std::pair<int64_t, int64_t>> headers_;
  std::set<std::pair<int64_t, int64_t>> index_blocks_;
};

// Reads everything of a file and collects what is wrong.
class Hdf5Verifier {
 public:
  Hdf5Verifier(const OpenedFile& opened, std::string file, const Progress& progress)
      : opened_(opened), file_(std::move(file)), progress_(progress) {
    report_.checked = opened.contents.left_out.empty();
  }

  Result<FormatReport> verify() && {
    for (TensorId t = 0; t < opened_.datasets.size(); ++t) {
      const Dataset& dataset = *opened_.datasets[t];
      if (dataset.storage == Storage::kPlain) HOLDFAST_TRY(read_plain(dataset));
      for (const auto& [number, chunk] : dataset.chunks) {
        HOLDFAST_TRY(check_chunk(dataset, chunk, t));
      }
    }
    std::ranges::sort(report_.damage, {}, &Damage::offset);
    return std::move(report_);
  }

 private:
  void count(int64_t bytes) {
    report_.bytes_read += bytes;
    if (progress_) progress_(report_.bytes_read, opened_.file.source()->size());
  }

  // There is nothing to compare with, but the bytes must be readable.
  Result<void> read_plain(const Dataset& dataset) {
    constexpr int64_t kPart = int64_t{4} << 20;
    report_.checked = report_.checked && dataset.bytes() == 0;
    for (int64_t done = 0; done < dataset.bytes();) {
      const int64_t bytes = std::min(kPart, dataset.bytes() - done);
      HOLDFAST_TRY(opened_.file.source()->read_bytes(dataset.offset + done, bytes));
      done += bytes;
      count(bytes);
    }
    return {};
  }

  Result<void> check_chunk(const Dataset& dataset, const Chunk& chunk,
                           TensorId tensor) {
    Bytes stored =
        HOLDFAST_TRY(opened_.file.source()->read_bytes(chunk.offset, chunk.bytes));
    count(chunk.bytes);
    report_.checked = report_.checked && hdf5::has_check(dataset.filters, chunk.mask);
    const auto decoded = hdf5::decode_chunk(dataset.filters, chunk.mask,
                                            std::move(stored), dataset.chunk_bytes());
    if (decoded.ok()) return {};
    report_.damage.push_back(
        {.file = file_,
         .tensors = {opened_.contents.collection.tensor(tensor).name},
         .offset = chunk.offset,
         .bytes = chunk.bytes,
         .what = decoded.error().message()});
    return {};
  }

  const OpenedFile& opened_;
  const std::string file_;
  const Progress& progress_;
  FormatReport report_;
};

}  // namespace

Result<void> edit_hdf5(const Hdf5Edit& edit, std::shared_ptr<const Source> source,
                       std::span<const Flip> flips, Checksums checksums) {
  const OpenedFile opened = HOLDFAST_TRY(hdf5::open_file(std::move(source)));
  Hdf5Patcher patcher(opened, edit, checksums);
  HOLDFAST_TRY(place_flips(opened.contents, flips,
                           [&](const PlacedFlip& at) { return patcher.flip(at); }));
  return patcher.finish();
}

Result<Patch> plan_patch_hdf5(Env& env, const Path& path, std::span<const Flip> flips,
                              Checksums checksums) {
  PatchPlan plan(env, path);
  FileEdit* file = HOLDFAST_TRY(plan.edit(path));
  HOLDFAST_TRY(edit_hdf5({.file = file}, HOLDFAST_TRY(FileSource::open(env, path)),
                         flips, checksums));
  return std::move(plan).finish();
}

Result<FormatReport> verify_hdf5(std::shared_ptr<const Source> source,
                                 const std::string& file, const Progress& progress) {
  const OpenedFile opened = HOLDFAST_TRY(hdf5::open_file(std::move(source)));
  return Hdf5Verifier(opened, file, progress).verify();
}

}  // namespace holdfast

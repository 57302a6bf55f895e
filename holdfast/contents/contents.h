// The contents of an opened file of tensors. Whatever its format is, it is a collection
// whose holders are files.
//
// Each box of a tensor lies at a known byte offset of a file, so that any box can be
// read without reading the rest. Code that reads a Contents does not know the format:
// converting, comparing and restoring are written once for all formats.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/state/collection.h"
#include "holdfast/state/object.h"

namespace holdfast {

struct Seal;
class Source;

// Checks digests that cover whole records of a file, and so more bytes than a reader
// may have asked for.
class DigestCheck {
 public:
  virtual ~DigestCheck() = default;
  // Called after bytes of the record at this offset of the holder's file were read.
  // Reads the rest of the record and fails with kCorrupt if its digest is wrong.
  // `whole` says that the caller has used all of a tensor. If it is false, the rest of
  // a large record is not read, and the bytes that the caller has got stay unchecked.
  virtual Result<void> check_record(HolderId holder, int64_t offset,
                                    bool whole) const = 0;
};

// The names of the values of an enumeration.
using EnumNames = std::vector<std::pair<std::string, int64_t>>;

// A value of HDF5 that is no tensor, as it lies in the file: an attribute or a dataset.
struct Hdf5Value {
  Bytes type{};                   // the datatype message
  bool null = false;              // whether it has no elements and no sizes
  std::vector<int64_t> sizes{};
  Bytes data{};
  Object value{};  // what it means
};

// What HDF5 files have and no other format, so that one that is written anew has it too.
struct Hdf5Details {
  // Soft links, by their paths: where they lead to. The paths of a tensor that lead over
  // such a link are aliases of it. A link may lead nowhere.
  std::map<std::string, std::string> soft_links{};
  std::set<std::string> empty_groups{};
  // By the name of a tensor of integers.
  std::map<std::string, EnumNames> enumerations{};
  // The types of attributes, by path and name, and of datasets that are no tensors: an
  // Object has fewer types than HDF5. Texts of any length have none of their own.
  std::map<std::string, std::map<std::string, Hdf5Value>> attributes{};
  std::map<std::string, Hdf5Value> values{};
  // Structure that no other file can have, by name, and what it is: attributes that refer
  // to other objects of the file, named datatypes, groups that contain themselves. No
  // value is missing without it. Example: "x: attribute DIMENSION_LIST: references".
  std::vector<std::string> not_kept{};
};

struct Contents {
  // The holders are files. One file may stand for several holders if its tensors
  // overlap in a way that a layout does not allow (overlapping views of torch).
  Collection collection;
  // One source for each holder, in the same order. Shared, because several holders may
  // be the same file.
  std::vector<std::shared_ptr<const Source>> sources;
  // What the file holds that is no tensor. If the format nests tensors (torch), the
  // tensors are leaves in it, and each is named by its path: "model.fc.weight". None if
  // the format knows only names.
  Object objects;
  // The __metadata__ of a safetensors file.
  std::map<std::string, std::string> metadata;
  // Null if the format has no digests, or if the sources check them while they are
  // read. Shared with a source.
  std::shared_ptr<const DigestCheck> digests{};
  // Objects of classes that Object cannot represent and that became plain data.
  // Example: "args: argparse.Namespace".
  std::vector<std::string> simplified{};
  // What the file holds but this build cannot read, by name, and why. All else can be
  // read. Example: "model.mask: has 9 dimensions, limit 8".
  std::vector<std::string> left_out{};
  Hdf5Details hdf5{};
};

// The line of left_out that is about this name; null if there is none.
const std::string* find_left_out(const Contents& contents, std::string_view name);

// Reads a box of a tensor into `memory`, from all pieces that hold parts of it. `into`
// says where each element goes, relative to memory.data(), and must stay inside
// `memory`. Bytes that lie scattered are read through a window of a few MiB, so that
// each small row does not cost a read. If the digests of a format cover whole records
// (torch), a part of a large tensor stays unchecked. Failures, besides those of reading
// the sources:
//   kInvalid   the box is not inside the tensor
//   kNotFound  no file has a part of the box; the message names the part
//   kCorrupt   a digest is wrong
Result<void> read_box(const Contents& contents, TensorId tensor, const Box& box,
                      const Map& into, ByteSpan memory);

// Reads the bytes [offset, offset + into.size()) of a tensor in canonical form:
// row-major, little-endian, unpadded. Does not check digests of whole records. To read
// all of a tensor in parts, use CanonicalStream.
Result<void> read_canonical(const Contents& contents, TensorId tensor, int64_t offset,
                            ByteSpan into);

// The same for a box of a tensor: the bytes [first, first + into.size()) of its stream
// (state/box_stream.h).
Result<void> read_stream(const Contents& contents, TensorId tensor, const Box& box,
                         int64_t first, ByteSpan into);

// Reads boxes from pieces that the caller names, as the moves of a plan name them. Does not
// check digests of whole records. Keeps a window for scattered bytes; not thread safe.
class PieceReader {
 public:
  // `contents` must outlive the reader.
  explicit PieceReader(const Contents& contents) : contents_(contents) {}

  // Reads `part`, which must be inside the box of the piece. `into` says where each of its
  // elements goes, as for read_box().
  Result<void> read(TensorId tensor, PieceId piece, const Box& part, const Map& into,
                    ByteSpan memory);

 private:
  const Contents& contents_;
  Bytes window_;
};

// Reads the bytes [first, first + into.size()) of the stream of a box by reading whole
// boxes. `read` fills its bytes with all elements of a box, in row-major order.
using ReadDense = std::function<Result<void>(const Box& box, ByteSpan into)>;
Result<void> read_stream_by(const Box& box, int64_t element_bytes, int64_t first,
                            ByteSpan into, const ReadDense& read);

// How many bytes of a tensor a reader of all of it should ask for at once: a part of a
// tensor that was transposed, or that lies in chunks, costs a read of much more than the
// part. 0 if it does not matter.
int64_t read_ahead_of(const Contents& contents, TensorId tensor);

// Reads the canonical bytes of a tensor from front to back. The last read checks the
// digest of the whole tensor, if the format has one. A tensor that is not stored in
// row-major order (because it was transposed, for example) is read ahead in large
// parts, because each part costs a read over all of its bytes in the file.
class CanonicalStream {
 public:
  // `contents` must outlive the stream.
  CanonicalStream(const Contents& contents, TensorId tensor);

  // Reads the next bytes. Fails with kInvalid after the last byte of the tensor.
  Result<void> read(ByteSpan into);

 private:
  Result<void> check_at_end() const;

  const Contents& contents_;
  const TensorId tensor_;
  // Whether the tensor is read ahead.
  const bool ahead_;
  int64_t at_ = 0;          // the next byte of the tensor
  Bytes part_;              // the bytes that were read ahead
  int64_t part_begin_ = 0;  // where part_ begins in the tensor
};

// The seal of the first bytes of a tensor. Calls `count` with the number of bytes of each part
// that was read; an error of it ends the reading.
Result<Seal> seal_of_tensor(const Contents& contents, TensorId tensor, int64_t bytes,
                            const std::function<Result<void>(int64_t)>& count = {});

// What is wrong with stored bytes, and the progress of looking for it.

// One thing that is wrong with a step or with a file of another format.
struct Damage {
  std::string file{};
  // The tensors that have bytes there, if they are known.
  std::vector<std::string> tensors{};
  // The number of the chunk in the shard of a step. -1 if the damage is not that of a
  // chunk.
  int64_t chunk = -1;
  // The first byte that is wrong, as far as it is known.
  int64_t offset = 0;
  // How many bytes are wrong, as far as it is known. 0 for the whole file.
  int64_t bytes = 0;
  std::string what{};
  friend bool operator==(const Damage&, const Damage&) = default;
};

// Example: "rank-0000.safetensors: chunk 3 (bytes 8192 to 12288; w1, w2) has crc ...;
// expected ..."
std::string to_string(const Damage& damage);

// Called now and then with the bytes that were read so far, and with all bytes that will
// be read.
using Progress = std::function<void(int64_t done, int64_t total)>;

// The result of checking every checksum of a file or folder (Format::verify).
struct FormatReport {
  std::vector<Damage> damage{};  // all of it, in order of file and offset
  int64_t bytes_read = 0;
  // Whether every byte of every tensor was checked. False if the format has no
  // checksums, or if the writer left some out.
  bool checked = false;

  // Adds the report of one file of several. What cannot be read because it is damaged
  // (kCorrupt) is damage of that file; any other error is returned.
  Result<void> add(const std::string& file, Result<FormatReport> one);
};

}  // namespace holdfast

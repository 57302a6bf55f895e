// Writes HDF5 files: the structures that every version of HDF5 reads, first all
// metadata and behind it the tensors, each contiguous.
//
//   superblock 0 | groups | object headers of datasets | global heap | tensors
//
// A sink takes bytes in order only, so all addresses are known before the first byte is
// written: the metadata is made in memory, and the addresses of the tensors are put in
// when its size is known.
#include <algorithm>
#include <map>

#include "holdfast/base/checked.h"
#include "holdfast/base/json_text.h"
#include "holdfast/contents/kept_beside.h"
#include "holdfast/hdf5/datatype_internal.h"
#include "holdfast/hdf5/encode_internal.h"
#include "holdfast/hdf5/hdf5.h"

namespace holdfast {
namespace {

using hdf5::Encoder;
using hdf5::kUndefined;

constexpr int64_t kAlignment = 64;
constexpr int64_t kWriteBytes = int64_t{4} << 20;
// Tensors whose names HDF5 cannot have are called so, with a number behind.
constexpr std::string_view kOddName = "holdfast.tensor.";

// The groups and datasets of the file: a dataset if it has a tensor.
struct Node {
  std::map<std::string, Node> children{};
  std::optional<TensorId> tensor{};
};

// A place that gets the address of a tensor's elements once it is known.
struct Pending {
  TensorId tensor = 0;
  size_t at = 0;
};

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         !name.starts_with(kKeptPrefix) && name.find('\0') == name.npos &&
         is_utf8(name);
}

// Calls `visit` with each part of a path between slashes. Stops if it returns false.
template <typename Visit>
bool for_each_part(std::string_view path, const Visit& visit) {
  for (;;) {
    const size_t end = path.find('/');
    if (!visit(path.substr(0, end), end == path.npos)) return false;
    if (end == path.npos) return true;
    path.remove_prefix(end + 1);
  }
}

// Puts a tensor at its path. Returns false, and may leave groups without tensors, if
// the path has a part that HDF5 cannot have or that is a tensor.
bool place(Node& root, std::string_view path, TensorId tensor) {
  if (!for_each_part(path,
                     [](std::string_view part, bool) { return is_plain_name(part); })) {
    return false;
  }
  Node* node = &root;
  const bool free = for_each_part(path, [&](std::string_view part, bool) {
    node = &node->children[std::string(part)];
    return !node->tensor;
  });
  if (!free || !node->children.empty()) return false;
  node->tensor = tensor;
  return true;
}

// How HDF5 stores a dtype: floats of one byte, which it does not have, as integers. BF16
// is stored as Keras does it.
Dtype stored_as(Dtype dtype) {
  const bool is_foreign = info(dtype).kind == DtypeKind::kFloat && bytes_of(dtype) == 1;
  return is_foreign ? unsigned_like(dtype) : dtype;
}

class FileMaker {
 public:
  explicit FileMaker(const Contents& contents) : contents_(contents) {}

  Result<void> write(Sink& sink) {
    HOLDFAST_TRY(plan_names());
    HOLDFAST_TRY(encode_metadata());
    HOLDFAST_TRY(place_tensors());
    HOLDFAST_TRY(sink.append(encoder_.bytes()));
    return write_tensors(sink);
  }

 private:
  Result<void> plan_names() {
    const auto tensors = contents_.collection.tensors();
    // Longer paths first would be no better: whichever comes first keeps its name.
    for (TensorId t = 0; t < tensors.size(); ++t) {
      std::string name = tensors[t].name;
      if (!place(root_, name, t)) {
        name = fmt::format("{}{}", kOddName, t);
        root_.children[name].tensor = t;
      }
      stored_.push_back({std::move(name), stored_as(tensors[t].dtype)});
    }
    return {};
  }

  Result<void> encode_metadata() {
    const hdf5::KeptAttributes kept =
        HOLDFAST_TRY(keep_beside(contents_, contents_.objects, stored_));
    const size_t superblock = encoder_.begin_file();
    std::vector<std::string_view> texts;
    for (const auto& [name, text] : kept) texts.push_back(text);
    if (std::ranges::find(stored_, Dtype::kBf16, &StoredAs::dtype) != stored_.end()) {
      texts.push_back(hdf5::kBfloat16);
    }
    const uint64_t heap = encoder_.add_texts(texts);
    bfloat16_ = {.heap = heap, .number = texts.size()};
    const auto root = encode_group(root_, kept, heap);
    encoder_.align(kAlignment);
    encoder_.finish_superblock(superblock, root);
    return {};
  }

  // Children come before their group, because it has their addresses.
  hdf5::GroupPlace encode_group(const Node& group, const hdf5::KeptAttributes& kept,
                                uint64_t heap) {
    std::vector<hdf5::Symbol> symbols;
    for (const auto& [name, child] : group.children) {
      if (child.tensor) {
        symbols.push_back({name, encode_dataset(*child.tensor), {}});
      } else if (!child.children.empty()) {
        const auto place = encode_group(child, {}, kUndefined);
        symbols.push_back({name, place.header, place});
      }
    }
    return encoder_.add_group(symbols, kept, heap);
  }

  uint64_t encode_dataset(TensorId t) {
    const Tensor& tensor = contents_.collection.tensor(t);
    const auto [header, address_at] =
        encoder_.add_dataset(stored_[t].dtype, tensor.shape, tensor.bytes(), bfloat16_);
    pending_.push_back({t, address_at});
    return header;
  }

  // Puts the addresses of the tensors into the metadata, which ends where they begin.
  Result<void> place_tensors() {
    std::ranges::sort(pending_, {}, &Pending::tensor);
    int64_t next = std::ssize(encoder_.bytes());
    for (const Pending& one : pending_) {
      const int64_t bytes = contents_.collection.tensor(one.tensor).bytes();
      if (bytes == 0) continue;
      encoder_.put_address(one.at, static_cast<uint64_t>(next));
      const auto end = checked_add(next, bytes + kAlignment);
      if (!end) return unsupported("hdf5: more than 2^63 bytes in one file");
      end_ = next + bytes;
      next = divide_up(end_, kAlignment) * kAlignment;
    }
    encoder_.put_end(
        static_cast<uint64_t>(std::max<int64_t>(end_, std::ssize(encoder_.bytes()))));
    return {};
  }

  Result<void> write_tensors(Sink& sink) const {
    Bytes buffer(static_cast<size_t>(kWriteBytes));
    const Bytes zeros(kAlignment);
    for (const Pending& one : pending_) {
      const int64_t bytes = contents_.collection.tensor(one.tensor).bytes();
      if (bytes == 0) continue;
      const int64_t gap = (kAlignment - sink.size() % kAlignment) % kAlignment;
      HOLDFAST_TRY(sink.append(ByteView(zeros).first(static_cast<size_t>(gap))));
      CanonicalStream stream(contents_, one.tensor);
      for (int64_t done = 0; done < bytes;) {
        const auto part = ByteSpan(buffer).first(
            static_cast<size_t>(std::min(kWriteBytes, bytes - done)));
        HOLDFAST_TRY(stream.read(part));
        HOLDFAST_TRY(sink.append(part));
        done += std::ssize(part);
      }
    }
    return {};
  }

  const Contents& contents_;
  Node root_;
  std::vector<StoredAs> stored_;
  Encoder encoder_;
  hdf5::HeapText bfloat16_;  // if a tensor is BF16
  std::vector<Pending> pending_;
  int64_t end_ = 0;
};

}  // namespace

Result<void> write_hdf5(Sink& sink, const Contents& contents) {
  HOLDFAST_CHECK(sink.size() == 0, "a sink with {} bytes", sink.size());
  return FileMaker(contents).write(sink);
}

}  // namespace holdfast

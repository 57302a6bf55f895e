// Writes HDF5 files: the structures that every version of HDF5 reads, first all
// metadata and behind it the tensors, each contiguous.
//
//   superblock 0 | groups | object headers of datasets | global heap | tensors
//
// A sink takes bytes in order only, so all addresses are known before the first byte is
// written: the metadata is made in memory, and the addresses of the tensors are put in
// when its size is known.
#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/hdf5/datatype_internal.h"
#include "holdfast/hdf5/hdf5.h"
#include "holdfast/hdf5/write_plan_internal.h"

namespace holdfast {
namespace {

using hdf5::Encoder;
using hdf5::kUndefined;

constexpr int64_t kAlignment = 64;
constexpr int64_t kWriteBytes = int64_t{4} << 20;
constexpr size_t kMostTypeBytes = 60000;

// A place that gets the address of a tensor's elements once it is known.
struct Pending {
  TensorId tensor = 0;
  size_t at = 0;
};

class FileMaker {
 public:
  explicit FileMaker(const Contents& contents)
      : contents_(contents),
        plan_(hdf5::plan_write(contents)),
        headers_(contents.collection.tensors().size(), kUndefined) {}

  // Returns the size of the file.
  Result<int64_t> prepare() {
    HOLDFAST_TRY(encode_metadata());
    HOLDFAST_TRY(place_tensors());
    return std::max<int64_t>(end_, std::ssize(encoder_.bytes()));
  }

  // Call prepare() first.
  Result<void> write(Sink& sink) const {
    HOLDFAST_TRY(sink.append(encoder_.bytes()));
    return write_tensors(sink);
  }

 private:
  Result<void> encode_metadata() {
    const KeptTexts kept =
        HOLDFAST_TRY(keep_beside(contents_, plan_.objects, plan_.stored));
    // Objects of texts that attributes refer to.
    std::vector<Object> kept_texts;
    kept_texts.reserve(kept.size());
    for (const auto& [name, text] : kept) {
      kept_texts.emplace_back(text);
      plan_.root.attributes.push_back({name, *hdf5::native_value(kept_texts.back())});
    }
    add_bfloat16();
    const size_t superblock = encoder_.begin_file();
    announce(plan_.root);
    for (const auto& attributes : plan_.attributes) announce(attributes);
    texts_.write(encoder_);
    const auto root = encode_group(plan_.root);
    encoder_.align(kAlignment);
    encoder_.finish_superblock(superblock, root);
    return {};
  }

  // Keras says in an attribute that bytes without a meaning are BF16.
  void add_bfloat16() {
    for (TensorId t = 0; t < plan_.stored.size(); ++t) {
      if (plan_.stored[t].dtype != Dtype::kBf16) continue;
      plan_.attributes[t].push_back(
          {std::string(hdf5::kDtypeAttribute), *hdf5::native_value(bfloat16_)});
    }
  }

  void announce(const std::vector<hdf5::NewAttribute>& attributes) {
    for (const auto& attribute : attributes) {
      hdf5::announce_texts(attribute.value, texts_);
    }
  }
  void announce(const hdf5::Node& node) {
    announce(node.attributes);
    if (node.value) hdf5::announce_texts(*node.value, texts_);
    for (const auto& [name, child] : node.children) announce(child);
  }

  std::vector<Bytes> messages_of(const std::vector<hdf5::NewAttribute>& attributes) {
    std::vector<Bytes> messages;
    for (const auto& attribute : attributes) {
      messages.push_back(hdf5::attribute_message(
          attribute.name, hdf5::stored_value(attribute.value, texts_)));
    }
    return messages;
  }

  // Children come before their group, because it has their addresses.
  hdf5::GroupPlace encode_group(const hdf5::Node& group) {
    std::vector<hdf5::Symbol> symbols;
    for (const auto& [name, child] : group.children) {
      if (!child.is_written()) continue;
      hdf5::Symbol symbol{.name = name};
      if (child.tensor) {
        symbol.header = encode_dataset(*child.tensor);
      } else if (child.value) {
        symbol.header = encode_value(child);
      } else if (child.target) {
        symbol.target = child.target;
      } else {
        symbol.group = encode_group(child);
        symbol.header = symbol.group.header;
      }
      symbols.push_back(std::move(symbol));
    }
    return encoder_.add_group(symbols, messages_of(group.attributes));
  }

  // A dataset that has several names is written once.
  uint64_t encode_dataset(TensorId t) {
    if (headers_[t] != kUndefined) return headers_[t];
    const Tensor& tensor = contents_.collection.tensor(t);
    const auto names = contents_.hdf5.enumerations.find(tensor.name);
    Bytes type = hdf5::type_of(plan_.stored[t].dtype);
    if (names != contents_.hdf5.enumerations.end()) {
      Bytes named = hdf5::enumeration_type(tensor.dtype, names->second);
      // Numbers whose names are too long for a message lose them.
      if (named.size() < kMostTypeBytes) type = std::move(named);
    }
    const std::vector<Bytes> attributes = messages_of(plan_.attributes[t]);
    const auto [header, address_at] = encoder_.add_dataset(
        {.type = std::move(type),
         .space = hdf5::space_of(tensor.shape.sizes()),
         .bytes = static_cast<uint64_t>(tensor.bytes()),
         .attributes = attributes,
         .links = plan_.links[t]});
    pending_.push_back({t, address_at});
    return headers_[t] = header;
  }

  uint64_t encode_value(const hdf5::Node& node) {
    const hdf5::StoredValue value = hdf5::stored_value(*node.value, texts_);
    const std::vector<Bytes> attributes = messages_of(node.attributes);
    const uint64_t address =
        value.data.empty() ? kUndefined : encoder_.add_bytes(value.data);
    return encoder_
        .add_dataset({.type = value.type,
                      .space = value.space,
                      .address = address,
                      .bytes = value.data.size(),
                      .attributes = attributes})
        .first;
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
  hdf5::WritePlan plan_;
  const Object bfloat16_{std::string(hdf5::kBfloat16)};
  hdf5::TextHeaps texts_;
  Encoder encoder_;
  std::vector<uint64_t> headers_;  // of the tensors that are encoded
  std::vector<Pending> pending_;
  int64_t end_ = 0;
};

}  // namespace

Result<void> write_hdf5(Sink& sink, const Contents& contents) {
  HOLDFAST_CHECK(sink.size() == 0, "a sink with {} bytes", sink.size());
  FileMaker maker(contents);
  HOLDFAST_TRY(maker.prepare());
  return maker.write(sink);
}

Result<int64_t> measure_hdf5(const Contents& contents) {
  return FileMaker(contents).prepare();
}

}  // namespace holdfast

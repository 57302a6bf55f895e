#include "holdfast/inspect/seal_check.h"

#include <algorithm>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/state/seal_mend.h"

namespace holdfast {
namespace {

constexpr int64_t kSealWindow = int64_t{4} << 20;

// Contents whose tensors are read without their own digests being checked: damage is what
// is looked for.
Contents without_digests(const Contents& contents) {
  Contents unchecked = contents;
  unchecked.digests = nullptr;
  return unchecked;
}

class Sealer {
 public:
  Sealer(const Contents& contents, const Progress& progress)
      : contents_(without_digests(contents)),
        progress_(progress),
        total_(contents.collection.bytes()) {}

  Result<Seal> seal(TensorId tensor) {
    const int64_t bytes = contents_.collection.tensor(tensor).bytes();
    CanonicalStream stream(contents_, tensor);
    Bytes window(static_cast<size_t>(std::min(bytes, kSealWindow)));
    Seal seal;
    for (int64_t at = 0; at < bytes; at += kSealWindow) {
      const auto part = ByteSpan(window).first(
          static_cast<size_t>(std::min(kSealWindow, bytes - at)));
      HOLDFAST_TRY(stream.read(part));
      seal += seal_bytes(part, static_cast<uint64_t>(at));
      done_ += std::ssize(part);
      if (progress_) progress_(done_, total_);
    }
    return seal;
  }

  const Contents& contents() const { return contents_; }

 private:
  const Contents contents_;
  const Progress& progress_;
  const int64_t total_;
  int64_t done_ = 0;
};

// The elements of a changed word, as they are and as they were. Empty if the word cannot
// have been what the seal says.
Result<std::vector<ChangedElement>> elements_of(const Contents& contents, TensorId id,
                                                const ChangedWord& changed) {
  const Tensor& tensor = contents.collection.tensor(id);
  const int64_t size = bytes_of(tensor.dtype);
  const auto begin = static_cast<int64_t>(4 * changed.word);
  const int64_t end = std::min(begin + 4, tensor.bytes());
  // All bytes of the elements that have bytes of the word.
  const int64_t first = begin / size, last = (end - 1) / size + 1;
  Bytes seen(static_cast<size_t>((last - first) * size));
  HOLDFAST_TRY(read_canonical(contents, id, first * size, seen));
  const auto inside = static_cast<size_t>(begin - first * size);
  std::array<std::byte, 4> word{};
  const auto count = static_cast<size_t>(end - begin);
  std::copy_n(seen.begin() + static_cast<int64_t>(inside), count, word.begin());
  const auto before = word_before(changed, load_little_endian<uint32_t>(word));
  if (!before || (count < 4 && *before >> (8 * count) != 0)) {
    return std::vector<ChangedElement>();
  }
  Bytes sealed = seen;
  store_little_endian(*before, word);
  std::copy_n(word.begin(), count, sealed.begin() + static_cast<int64_t>(inside));
  std::vector<ChangedElement> changes;
  for (int64_t i = 0; i < last - first; ++i) {
    const auto part = [&](const Bytes& bytes) {
      return element_bits(ByteView(bytes).subspan(static_cast<size_t>(i * size),
                                                  static_cast<size_t>(size)));
    };
    const ChangedElement one{first + i, part(sealed), part(seen)};
    if (one.sealed != one.seen) changes.push_back(one);
  }
  return changes;
}

std::string describe(const BrokenSeal& broken) {
  if (broken.changes.empty()) {
    return "has another seal; expected the one that was made earlier, and more than "
           "one "
           "word "
           "differs";
  }
  std::string text;
  for (const ChangedElement& one : broken.changes) {
    if (!text.empty()) text += ", ";
    text +=
        fmt::format("{} {} is {}; expected {}", index_text(broken.shape, one.element),
                    bits_in_words(difference(one.sealed, one.seen)),
                    value_text(broken.dtype, one.seen, kAllDigits),
                    value_text(broken.dtype, one.sealed, kAllDigits));
  }
  return text + ", by its seal";
}

BrokenSeal broken_of(const SealedTensor& sealed, std::string what) {
  return {.tensor = sealed.name,
          .dtype = sealed.dtype,
          .shape = sealed.shape,
          .what = std::move(what)};
}

Result<std::optional<BrokenSeal>> check_one(Sealer& sealer,
                                            const SealedTensor& sealed) {
  const Collection& collection = sealer.contents().collection;
  const auto id = collection.find(sealed.name);
  if (!id) {
    return std::optional(
        broken_of(sealed, "is not there; expected it, because it was sealed"));
  }
  const Tensor& tensor = collection.tensor(*id);
  if (tensor.dtype != sealed.dtype || tensor.shape != sealed.shape) {
    std::string what = fmt::format("is {} {}; expected {} {}, as it was sealed",
                                   name_of(tensor.dtype), to_string(tensor.shape),
                                   name_of(sealed.dtype), to_string(sealed.shape));
    return std::optional(broken_of(sealed, std::move(what)));
  }
  const Seal seen = HOLDFAST_TRY(sealer.seal(*id));
  if (seen == sealed.seal) return std::optional<BrokenSeal>();
  BrokenSeal broken = broken_of(sealed, "");
  if (const auto changed = find_changed_word(sealed.seal, seen)) {
    broken.changes = HOLDFAST_TRY(elements_of(sealer.contents(), *id, *changed));
  }
  broken.what = describe(broken);
  return std::optional(std::move(broken));
}

}  // namespace

Result<std::vector<SealedTensor>> seal_tensors(const Contents& contents,
                                               const Progress& progress) {
  Sealer sealer(contents, progress);
  std::vector<SealedTensor> sealed;
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    const Tensor& tensor = contents.collection.tensor(t);
    Seal seal = HOLDFAST_TRY(sealer.seal(t));
    sealed.push_back({tensor.name, tensor.dtype, tensor.shape, seal});
  }
  return sealed;
}

Result<std::vector<SealedTensor>> seals_of_step(Env& env, const Path& folder) {
  const StepFiles step = HOLDFAST_TRY(open_step(env, folder));
  std::vector<SealedTensor> seals;
  for (TensorId t = 0; t < step.seals.size(); ++t) {
    const Tensor& tensor = step.collection.tensor(t);
    if (step.seals[t].bytes != static_cast<uint64_t>(tensor.bytes())) continue;
    seals.push_back({tensor.name, tensor.dtype, tensor.shape, step.seals[t]});
  }
  return seals;
}

Result<std::vector<BrokenSeal>> check_seals(const Contents& contents,
                                            std::span<const SealedTensor> sealed,
                                            const Progress& progress) {
  Sealer sealer(contents, progress);
  std::vector<BrokenSeal> all;
  for (const SealedTensor& one : sealed) {
    std::optional<BrokenSeal> broken = HOLDFAST_TRY(check_one(sealer, one));
    if (broken) all.push_back(*std::move(broken));
  }
  return all;
}

}  // namespace holdfast

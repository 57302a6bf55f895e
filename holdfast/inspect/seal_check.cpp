#include "holdfast/inspect/seal_check.h"

#include <algorithm>

#include "holdfast/checkpoint/step_files.h"

namespace holdfast {
namespace {

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
    return seal_of_tensor(contents_, tensor, bytes, [&](int64_t read) -> Result<void> {
      done_ += read;
      if (progress_) progress_(done_, total_);
      return {};
    });
  }

  const Contents& contents() const { return contents_; }

 private:
  const Contents contents_;
  const Progress& progress_;
  const int64_t total_;
  int64_t done_ = 0;
};

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
  auto change = HOLDFAST_TRY(find_word_change(
      sealed.seal, seen, tensor, Box::whole(tensor.shape), [&](int64_t at, ByteSpan into) {
        return read_canonical(sealer.contents(), *id, at, into);
      }));
  if (change) broken.changes = std::move(change->elements);
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

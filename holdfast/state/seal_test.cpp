#include "holdfast/state/seal.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <set>

#include "holdfast/state/seal_kernel.h"
#include "holdfast/state/changed_word.h"
#include "holdfast/state/strided_testing.h"

namespace holdfast::seal_test {
namespace {

using strided_testing::pick;
using strided_testing::random_bytes;
using Bytes = std::vector<std::byte>;

// The definition of the seal, computed word by word. It shares no code with what is
// tested.
uint64_t split_mix(uint64_t state) {
  uint64_t z = state + 0x9E3779B97F4A7C15u;
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9u;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::vector<uint32_t> naive_constants(uint64_t lane) {
  std::vector<uint32_t> row;
  std::set<uint32_t> seen;
  for (uint64_t n = 0; row.size() < 1024; ++n) {
    const uint64_t mixed = split_mix((lane + 1) * (uint64_t{1} << 32) + n);
    const uint32_t value = static_cast<uint32_t>(mixed & 0xffffffffu) | 1u;
    if (seen.insert(value).second) row.push_back(value);
  }
  return row;
}

Seal naive_seal(const Bytes& bytes, uint64_t offset) {
  static const std::array rows{naive_constants(0), naive_constants(1)};
  Seal seal{.bytes = bytes.size()};
  for (uint64_t j = 0; j < 2; ++j) {
    for (uint64_t b = 0; b < bytes.size(); ++b) {
      const uint64_t i = (offset + b) / 4;
      const uint64_t part = std::to_integer<uint64_t>(bytes[b])
                            << (8 * ((offset + b) % 4));
      const uint64_t a = split_mix(split_mix(j) ^ (i / 1024)) | 1;
      seal.lanes[j] += a * rows[j][i % 1024] * part;
    }
  }
  return seal;
}

template <typename T>
Bytes bytes_of_values(const std::vector<T>& values) {
  const auto raw = std::as_bytes(std::span(values));
  return {raw.begin(), raw.end()};
}

Seal seal_whole(const Shape& shape, Dtype dtype, const Bytes& bytes) {
  const Box box = Box::whole(shape);
  return seal_box(shape, dtype, box, Map::dense(box, bytes_of(dtype)), bytes);
}

TEST(SealTest, ConstantsAreOddDistinctAndAsDefined) {
  for (uint64_t j = 0; j < 2; ++j) {
    const auto row = std::span(kSealConstants.row[j]).first(1024);
    EXPECT_EQ(std::vector(row.begin(), row.end()), naive_constants(j));
    EXPECT_EQ(std::set(row.begin(), row.end()).size(), 1024u);
    EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](uint32_t k) { return k & 1; }));
  }
  EXPECT_FALSE(std::ranges::equal(kSealConstants.row[0], kSealConstants.row[1]));
}

TEST(SealTest, MatchesThePublishedVectors) {
  const Seal floats =
      seal_whole({3}, Dtype::kF32, bytes_of_values<float>({1.0f, 2.0f, 3.0f}));
  EXPECT_EQ(floats.lanes[0], 0xc915d16cafc00000u);
  EXPECT_EQ(floats.lanes[1], 0x04133de081c00000u);
  EXPECT_EQ(floats.bytes, 12u);
  EXPECT_EQ(print_seal(floats, Dtype::kF32, {3}), "94106359264b9ad0674d59ded7a2bd3a");

  std::vector<uint8_t> ramp(5000);
  for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<uint8_t>(i % 251);
  const Seal bytes = seal_whole({5000}, Dtype::kU8, bytes_of_values(ramp));
  EXPECT_EQ(bytes.lanes[0], 0x634c567c606fd408u);
  EXPECT_EQ(bytes.lanes[1], 0xb6f7c00049082d10u);
  EXPECT_EQ(bytes.bytes, 5000u);
  EXPECT_EQ(print_seal(bytes, Dtype::kU8, {5000}), "3ce975d4ebf00bc6c0d4e74f2c3ed8b6");

  const Seal scalar = seal_whole({}, Dtype::kF32, bytes_of_values<float>({2.5f}));
  EXPECT_EQ(scalar.lanes[0], 0x326716a076e00000u);
  EXPECT_EQ(scalar.lanes[1], 0x4893aab3c5a00000u);
  EXPECT_EQ(print_seal(scalar, Dtype::kF32, {}), "5b64b617ffc6466e39f4bb2586138923");

  const Seal empty = seal_whole({0, 7}, Dtype::kBf16, {});
  EXPECT_EQ(empty, Seal{});
  EXPECT_EQ(print_seal(empty, Dtype::kBf16, {0, 7}),
            "807b3b32c13635cffde0cd5968e43365");
}

TEST(SealTest, PrintedFormNamesDtypeShapeAndByteCount) {
  const Seal seal{.lanes = {1, 2}, .bytes = 24};
  const std::set<std::string> printed{
      print_seal(seal, Dtype::kF32, {6}),
      print_seal(seal, Dtype::kI32, {6}),
      print_seal(seal, Dtype::kF32, {2, 3}),
      print_seal(seal, Dtype::kF32, {6, 1}),
      print_seal({.lanes = {2, 1}, .bytes = 24}, Dtype::kF32, {6}),
      print_seal({.lanes = {1, 2}, .bytes = 20}, Dtype::kF32, {6})};
  EXPECT_EQ(printed.size(), 6u);
  for (const std::string& text : printed) EXPECT_EQ(text.size(), 32u);
}

// Tests every kernel that this CPU runs, with every length around a block and any
// alignment of the canonical offset and of the memory.
TEST(SealTest, EveryKernelAgreesWithTheDefinitionForEveryLengthAndAlignment) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 engine(seed);
  const Bytes source = random_bytes(5000 + 64, seed);
  for (size_t length = 0; length <= 5000; ++length) {
    const size_t shift = engine() % 64;
    const uint64_t offset = engine() >> (2 + engine() % 62);
    // A copy that ends with the run, so that a sanitizer notices if one byte too many
    // is read.
    const Bytes memory(source.begin(), source.begin() + int64_t(shift + length));
    const auto run = std::span(memory).subspan(shift);
    const Seal want = naive_seal({run.begin(), run.end()}, offset);
    for (const NamedSealKernel& kernel : seal_kernels()) {
      ASSERT_EQ(seal_bytes_by(kernel.sum, run, offset), want)
          << kernel.name << ", " << length << " bytes at " << offset << ", memory +"
          << shift;
    }
    ASSERT_EQ(seal_bytes(run, offset), want);
  }
}

TEST(SealTest, EveryKernelSumsExtremeWordsWithoutLosingCarries) {
  const Bytes ones(kSealBlock * 4, std::byte{0xff});
  for (const NamedSealKernel& kernel : seal_kernels()) {
    EXPECT_EQ(seal_bytes_by(kernel.sum, ones, 0), naive_seal(ones, 0)) << kernel.name;
  }
}

RC_GTEST_PROP(SealProperty, AnyCutOfTheBytesAddsUpInAnyOrder, ()) {
  const Bytes bytes = random_bytes(static_cast<size_t>(pick(0, 20000)),
                                   *rc::gen::arbitrary<uint32_t>());
  std::vector<size_t> cuts = *rc::gen::container<std::vector<size_t>>(
      rc::gen::inRange<size_t>(0, bytes.size() + 1));
  cuts.push_back(0);
  cuts.push_back(bytes.size());
  std::sort(cuts.begin(), cuts.end());
  std::vector<Seal> parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    parts.push_back(
        seal_bytes(std::span(bytes).subspan(cuts[i], cuts[i + 1] - cuts[i]), cuts[i]));
  }
  Seal sum;
  while (!parts.empty()) {
    const auto next = parts.begin() + pick(0, int64_t(parts.size()) - 1);
    sum += *next;
    parts.erase(next);
  }
  RC_ASSERT(sum == naive_seal(bytes, 0));
}

// Cuts `box` at random into boxes that fill it.
void cut(const Box& box, int depth, std::vector<Box>& parts) {
  const int k = box.rank() == 0 ? 0 : static_cast<int>(pick(0, box.rank() - 1));
  if (depth == 0 || box.rank() == 0 || pick(0, 5) == 0) {
    parts.push_back(box);
    return;
  }
  const int64_t at = pick(box[k].lo, box[k].hi);
  cut(box.with(k, {box[k].lo, at}), depth - 1, parts);
  cut(box.with(k, {at, box[k].hi}), depth - 1, parts);
}

// The bytes that a holder of `box` would have: the elements where a random map puts
// them, and random bytes elsewhere.
Seal seal_stored(const Shape& shape, Dtype dtype, const Box& box,
                 const Bytes& canonical) {
  const int64_t bytes = bytes_of(dtype);
  const Box whole = Box::whole(shape);
  const Map from = Map::dense(whole, bytes).narrowed(whole, box);
  const auto stored = strided_testing::pick_map(box.shape(), bytes);
  Bytes holder = random_bytes(stored.size, *rc::gen::arbitrary<uint32_t>());
  strided_testing::naive_copy(from, stored.map, box.shape(), bytes, canonical.data(),
                              holder.data());
  return seal_box(shape, dtype, box, stored.map, holder);
}

Dtype pick_dtype() {
  const auto types = all_dtypes();
  return types[static_cast<size_t>(pick(0, int64_t(types.size()) - 1))].dtype;
}

RC_GTEST_PROP(SealProperty, AnySplitOverHoldersGivesTheSealOfTheWhole, ()) {
  const Shape shape = strided_testing::pick_shape(4, 6, 300);
  const Dtype dtype = pick_dtype();
  const Bytes canonical =
      random_bytes(static_cast<size_t>(shape.elements() * bytes_of(dtype)),
                   *rc::gen::arbitrary<uint32_t>());
  std::vector<Box> parts;
  cut(Box::whole(shape), 4, parts);
  Seal sum;
  while (!parts.empty()) {
    const auto next = parts.begin() + pick(0, int64_t(parts.size()) - 1);
    sum += seal_stored(shape, dtype, *next, canonical);
    parts.erase(next);
  }
  RC_ASSERT(sum == naive_seal(canonical, 0));
  RC_ASSERT(sum == seal_whole(shape, dtype, canonical));
}

// Large enough for several tiles of the gathering buffer, in every storage order.
TEST(SealTest, EveryStorageOrderOfALargeTensorGivesTheSameSeal) {
  const Shape shape{23, 30, 61};
  for (const Dtype dtype : {Dtype::kU8, Dtype::kBf16, Dtype::kF32, Dtype::kC128}) {
    const int64_t bytes = bytes_of(dtype);
    const Map dense = Map::dense(Box::whole(shape), bytes);
    const Bytes canonical =
        random_bytes(static_cast<size_t>(shape.elements() * bytes), 7);
    const Seal want = naive_seal(canonical, 0);
    std::array<int, 3> order{0, 1, 2};  // innermost first
    do {
      for (const int64_t gap : {int64_t{0}, bytes}) {
        Map map;
        int64_t span = bytes;
        for (const int k : order) {
          map.strides[static_cast<size_t>(k)] = span + gap;
          span += (span + gap) * (shape[k] - 1);
        }
        Bytes holder(static_cast<size_t>(span));
        strided_testing::naive_copy(dense, map, shape, bytes, canonical.data(),
                                    holder.data());
        ASSERT_EQ(seal_box(shape, dtype, Box::whole(shape), map, holder), want)
            << name_of(dtype) << ", innermost " << order[0] << ", " << order[1];
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(SealTest, EverySingleBitFlipOfEveryDtypeIsSeen) {
  const Shape shape{3, 5};
  for (const DtypeInfo& type : all_dtypes()) {
    Bytes bytes = random_bytes(static_cast<size_t>(15 * type.bytes), 1);
    const Seal before = seal_whole(shape, type.dtype, bytes);
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const auto mask = static_cast<std::byte>(1u << (bit % 8));
      bytes[bit / 8] ^= mask;
      const Seal after = seal_whole(shape, type.dtype, bytes);
      EXPECT_NE(after.lanes[0], before.lanes[0]) << type.name << " bit " << bit;
      EXPECT_NE(after.lanes[1], before.lanes[1]) << type.name << " bit " << bit;
      bytes[bit / 8] ^= mask;
    }
    EXPECT_EQ(seal_whole(shape, type.dtype, bytes), before);
  }
}

// Signs are the top bits of words, where sums modulo a power of two are weakest. The
// tensor lies across the end of a block.
TEST(SealTest, EveryPairOfSignFlipsInDoublesIsSeen) {
  const size_t count = 128;
  const uint64_t offset = 4096 - 8 * count / 2;
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = 0.37 * static_cast<double>(i + 1);
  const auto seal = [&] {
    return seal_bytes(std::as_bytes(std::span(values)), offset);
  };
  const Seal before = seal();
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      values[a] = -values[a], values[b] = -values[b];
      EXPECT_NE(seal(), before) << "signs of " << a << " and " << b;
      values[a] = -values[a], values[b] = -values[b];
    }
  }
}

TEST(SealTest, SwappedWordsAndMovedZerosAreSeen) {
  const Seal before = seal_bytes(std::as_bytes(std::span("abcdefgh", 8)), 0);
  EXPECT_NE(seal_bytes(std::as_bytes(std::span("efghabcd", 8)), 0), before);
  EXPECT_NE(seal_bytes(std::as_bytes(std::span("abcdefgh", 8)), 4096), before);
  const Bytes zeros(8);
  EXPECT_EQ(seal_bytes(zeros, 0).lanes, Seal{}.lanes);
  EXPECT_NE(seal_bytes(zeros, 0), Seal{}) << "the byte count tells zeros from nothing";
}

TEST(SealTest, EmptyBoxesAddNothing) {
  const Bytes none;
  EXPECT_EQ(seal_bytes(none, 17), Seal{});
  EXPECT_EQ(seal_box({4, 4}, Dtype::kF64, Box{{2, 2}, {0, 4}}, Map{}, none), Seal{});
  EXPECT_EQ(seal_box({0}, Dtype::kU8, Box{{0, 0}}, Map{.offset = 5}, none), Seal{});
}

TEST(SealTest, OffsetsBeyondFourGigabytesCount) {
  const int64_t rows = int64_t{1} << 33;
  const Bytes row = random_bytes(12, 3);
  const Box last{{rows - 1, rows}, {0, 3}};
  EXPECT_EQ(seal_box({rows, 3}, Dtype::kF32, last, Map::dense(last, 4), row),
            naive_seal(row, static_cast<uint64_t>(rows - 1) * 12));
}

// Damages words of a tensor and looks for the damage.
struct Damaged {
  explicit Damaged(size_t size, uint64_t seed)
      : bytes(random_bytes(size, seed)), sealed(seal_bytes(bytes, 0)) {}

  uint32_t word(uint64_t i) const {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + 4 * i,
                std::min<size_t>(4, bytes.size() - 4 * i));
    return value;
  }
  void set(uint64_t i, uint32_t value) {
    std::memcpy(bytes.data() + 4 * i, &value,
                std::min<size_t>(4, bytes.size() - 4 * i));
  }
  std::optional<ChangedWord> find() const {
    return find_changed_word(sealed, seal_bytes(bytes, 0), 0, (bytes.size() + 3) / 4);
  }

  Bytes bytes;
  const Seal sealed;
};

// A change of a word: one bit, the top bit, some bits, or any other value.
uint32_t other_word(std::mt19937_64& engine, uint32_t word) {
  switch (engine() % 4) {
    case 0: return word ^ (1u << (engine() % 32));
    case 1: return word ^ 0x80000000u;
    case 2: return word ^ (1u << (engine() % 31)) ^ (1u << 31);
    default: return word + 1 + static_cast<uint32_t>(engine() % 0xfffffffeu);
  }
}

TEST(SealMendTest, ThousandDamagedWordsAreFoundAndMended) {
  std::mt19937_64 engine(20);
  Damaged damaged(4 * 5000 + 3, 1);  // the last word has 3 bytes
  for (int trial = 0; trial < 1000; ++trial) {
    const uint64_t i = trial < 10 ? 5000 : engine() % 5000;
    const uint32_t before = damaged.word(i);
    const uint32_t limit = i == 5000 ? 0xffffffu : 0xffffffffu;
    damaged.set(i, other_word(engine, before) & limit);
    if (damaged.word(i) == before) continue;
    const auto found = damaged.find();
    ASSERT_TRUE(found) << "trial " << trial;
    EXPECT_EQ(found->word, i);
    EXPECT_EQ(word_before(*found, damaged.word(i)), before);
    damaged.set(i, before);
  }
  EXPECT_EQ(damaged.find(), std::nullopt) << "equal seals";
}

TEST(SealMendTest, ThousandPairsOfDamagedWordsAreRefused) {
  std::mt19937_64 engine(21);
  Damaged damaged(4 * 5000, 2);
  for (int trial = 0; trial < 1000; ++trial) {
    const uint64_t a = engine() % 5000;
    const uint64_t b =
        trial % 2 == 0 ? (a + 1) % 5000 : (a + 1 + engine() % 4999) % 5000;
    const uint32_t was_a = damaged.word(a), was_b = damaged.word(b);
    damaged.set(a, other_word(engine, was_a));
    damaged.set(b, other_word(engine, was_b));
    EXPECT_EQ(damaged.find(), std::nullopt) << "words " << a << " and " << b;
    damaged.set(a, was_a);
    damaged.set(b, was_b);
  }
}

// A part of a tensor, as a rank holds it, with offsets beyond 2^32 words.
TEST(SealMendTest, AWordOfAPartIsFoundAtItsPlaceInTheWholeTensor) {
  const uint64_t offset = (uint64_t{5} << 34) + 4 * 1000;
  Bytes bytes = random_bytes(40000, 3);
  const Seal sealed = seal_bytes(bytes, offset);
  bytes[4 * 321 + 3] ^= std::byte{0x40};
  const uint64_t first = offset / 4;
  const auto found =
      find_changed_word(sealed, seal_bytes(bytes, offset), first, first + 10000);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->word, first + 321);
  EXPECT_EQ(std::abs(found->difference), 0x40000000);
  const Seal shorter = seal_bytes(std::span(bytes).first(39996), offset);
  EXPECT_EQ(find_changed_word(sealed, shorter, first, first + 10000), std::nullopt);
}

TEST(SealMendTest, AResultThatIsNoWordIsRefused) {
  EXPECT_EQ(word_before({.difference = -5}, 4), std::nullopt);
  EXPECT_EQ(word_before({.difference = 1}, 0xffffffffu), std::nullopt);
  EXPECT_EQ(word_before({.difference = -4}, 4), 0u);
}

TEST(SealDeathTest, BoxOutsideTheTensorOrTheHolderAborts) {
  const Bytes holder(16);
  const Box box{{0, 4}};
  EXPECT_DEATH(seal_box({3}, Dtype::kF32, box, Map::dense(box, 4), holder), "of shape");
  EXPECT_DEATH(seal_box({4}, Dtype::kF32, box, Map::dense(box, 4, 1), holder),
               "touches bytes 1 to 17 of 16");
  EXPECT_DEATH(seal_box({4}, Dtype::kF32, box, Map{.strides = {-4}}, holder),
               "touches bytes -12 to 4 of 16");
}

}  // namespace
}  // namespace holdfast::seal_test

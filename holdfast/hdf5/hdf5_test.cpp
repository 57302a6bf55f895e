// HDF5 files: those of h5py are read as h5py reads them, and malicious ones are
// refused.
#include "holdfast/hdf5/hdf5.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/posix_env.h"

namespace holdfast::hdf5_test {
namespace {

const std::filesystem::path kAttacks = HOLDFAST_HDF5_ATTACKS;
const std::filesystem::path kFixtures = HOLDFAST_HDF5_FIXTURES;

Result<Contents> open_path(const Path& path) {
  const auto env = make_posix_env();
  // A source of its own memory, because the Env does not live as long as the contents.
  return open_hdf5(std::make_shared<MemorySource>(path.filename(),
                                                  HOLDFAST_TRY(env->read_file(path))));
}

Result<void> read_all(const Contents& contents) {
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    // A few bytes of a file can stand for a gigabyte that was never written.
    Bytes bytes(static_cast<size_t>(
        std::min<int64_t>(contents.collection.tensor(t).bytes(), 1 << 20)));
    HOLDFAST_TRY(read_canonical(contents, t, 0, bytes));
  }
  return {};
}

// What random_files.py writes about a file: one line for each path to a tensor.
std::vector<std::string> lines_of(const Contents& contents) {
  std::vector<std::string> lines;
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    const Tensor& tensor = contents.collection.tensor(t);
    std::vector<std::string> names = tensor.aliases;
    names.push_back(tensor.name);
    const std::string hex = to_hex(tests::canonical_bytes(contents, t));
    for (const std::string& name : names) {
      lines.push_back(fmt::format("{}\t{}\t{}\t{}", name, name_of(tensor.dtype),
                                  to_string(tensor.shape), hex));
    }
  }
  std::ranges::sort(lines);
  return lines;
}

std::vector<std::string> read_lines(const Path& path) {
  std::istringstream text(make_posix_env()->read_text(path).value());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST(Hdf5AttackTest, EachMaliciousFileIsRefusedByItsSentence) {
  std::map<std::string, std::string> expected;
  for (const std::string& line : read_lines(kAttacks / "expected.txt")) {
    expected[line.substr(0, line.find(": "))] = line;
  }
  size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kAttacks)) {
    if (entry.path().extension() != ".h5") continue;
    const auto opened = open_path(entry.path());
    const Result<void> read = opened.ok() ? read_all(*opened) : opened.error();
    ASSERT_FALSE(read.ok()) << entry.path();
    EXPECT_TRUE(read.error().code() == ErrorCode::kCorrupt ||
                read.error().code() == ErrorCode::kUnsupported)
        << entry.path();
    // A failure to read begins with the name of the tensor.
    const std::string name = entry.path().filename();
    const size_t begin = read.error().message().find(name);
    ASSERT_NE(begin, std::string::npos) << read.error().message();
    EXPECT_EQ(read.error().message().substr(begin), expected[name]);
    ++seen;
  }
  EXPECT_EQ(seen, expected.size());
  EXPECT_GE(seen, 70U);
}

// The long run changes every byte in three ways.
TEST(Hdf5AttackTest, WithAnyByteChangedAFileIsReadOrRefused) {
  const size_t step = std::getenv("HOLDFAST_LONG") != nullptr ? 1 : 23;
  for (const char* name : {"older.h5", "newer.h5"}) {
    const Bytes bytes = make_posix_env()->read_file(kFixtures / name).value();
    for (size_t i = 0; i < bytes.size(); i += step) {
      for (const std::byte mask : {std::byte{1}, std::byte{0x80}, std::byte{0xff}}) {
        Bytes changed = bytes;
        changed[i] ^= mask;
        const auto opened = open_hdf5(std::make_shared<MemorySource>(name, changed));
        const Result<void> read = opened.ok() ? read_all(*opened) : opened.error();
        EXPECT_TRUE(read.ok() || !read.error().message().empty());
      }
    }
  }
}

TEST(Hdf5Test, FixturesAreReadAsH5pyReadsThem) {
  for (const char* name : {"older", "newer"}) {
    const auto contents = open_path(kFixtures / (std::string(name) + ".h5"));
    ASSERT_OK(contents);
    EXPECT_EQ(lines_of(*contents),
              read_lines(kFixtures / (std::string(name) + ".txt")));
  }
}

TEST(Hdf5Test, CutAnywhereAFixtureIsRefused) {
  const Bytes bytes = make_posix_env()->read_file(kFixtures / "older.h5").value();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto opened = open_hdf5(
        std::make_shared<MemorySource>("cut", copy_of(ByteView(bytes).first(size))));
    ASSERT_FALSE(opened.ok()) << size;
  }
}

TEST(Hdf5Test, StringsAttributesAndNoneAreObjects) {
  const auto contents = open_path(kFixtures / "older.h5");
  ASSERT_OK(contents);
  const auto text = [](const char* value) { return Object(std::string(value)); };
  const auto dict = [](std::vector<std::pair<Object, Object>> items) {
    return Object(Object::Dict{std::move(items)});
  };
  const Object names(Object::List{{text("x"), text("yy")}});
  EXPECT_TRUE(
      contents->objects ==
      dict({{text("attributes"),
             dict({{text("/"), dict({{text("big"), Object(Object::BigInteger{
                                                       "18446744073709551615"})},
                                     {text("layer_names"), names},
                                     {text("lr"), Object(0.5)}})},
                   {text("brain"), dict({{text("dtype"), text("bfloat16")}})}})},
            {text("values"), dict({{text("none"), Object()},
                                   {text("text"), text("héllo")},
                                   {text("texts"), names}})}}));
  EXPECT_EQ(contents->simplified.size(), 1U);
  const auto brain = contents->collection.find("brain");
  ASSERT_TRUE(brain);
  EXPECT_EQ(contents->collection.tensor(*brain).dtype, Dtype::kBf16);
}

TEST(Hdf5Test, SeveralThreadsReadOneFile) {
  const auto contents = open_path(kFixtures / "older.h5");
  ASSERT_OK(contents);
  const auto expected = read_lines(kFixtures / "older.txt");
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(lines_of(*contents), expected); });
  }
}

TEST(Hdf5Test, AnyRangeOfBytesOfACompressedTensorIsRead) {
  const auto contents = open_path(kFixtures / "older.h5");
  ASSERT_OK(contents);
  const TensorId t = contents->collection.find("group/packed").value();
  const Bytes whole = tests::canonical_bytes(*contents, t);
  for (int64_t first = 0; first < std::ssize(whole); first += 7) {
    for (int64_t count : {1, 5, 64, 333}) {
      Bytes part(static_cast<size_t>(std::min(count, std::ssize(whole) - first)));
      ASSERT_OK(read_canonical(*contents, t, first, part));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first));
    }
  }
}

#ifdef HOLDFAST_H5PY_PYTHON
TEST(Hdf5InteropTest, RandomFilesOfH5pyAreReadBitEqual) {
  const int count = std::getenv("HOLDFAST_LONG") != nullptr ? 500 : 60;
  const TempFolder folder;
  const std::string command = fmt::format("'{}' '{}' '{}' 0 {}", HOLDFAST_H5PY_PYTHON,
                                          (kFixtures / "random_files.py").native(),
                                          folder.path().native(), count);
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (int i = 0; i < count; ++i) {
    const auto contents = open_path(folder.path() / fmt::format("{}.h5", i));
    ASSERT_OK(contents);
    EXPECT_EQ(lines_of(*contents), read_lines(folder.path() / fmt::format("{}.txt", i)))
        << i;
  }
}
#endif

}  // namespace
}  // namespace holdfast::hdf5_test

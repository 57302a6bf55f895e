// HDF5 files: those of h5py are read as h5py reads them, and malicious ones are
// refused.
#include "holdfast/hdf5/hdf5.h"

#include <cstdlib>
#include <thread>

#include "holdfast/contents/patch.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/hdf5/hdf5_testing.h"

namespace holdfast::hdf5_test {
namespace {

Result<void> read_all(const Contents& contents) {
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    // A few bytes of a file can stand for a gigabyte that was never written.
    Bytes bytes(static_cast<size_t>(
        std::min<int64_t>(contents.collection.tensor(t).bytes(), 1 << 20)));
    HOLDFAST_TRY(read_canonical(contents, t, 0, bytes));
  }
  return {};
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
    Result<void> read = opened.ok() ? read_all(*opened) : opened.error();
    // What is odd is named, and the rest is read.
    if (read.ok() && opened->left_out.size() + opened->hdf5.not_kept.size() == 1) {
      const auto& lines =
          opened->left_out.empty() ? opened->hdf5.not_kept : opened->left_out;
      read = unsupported("{}: {}", entry.path().filename().native(), lines.front());
    }
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
  const size_t step = std::getenv("HOLDFAST_LONG") != nullptr ? 1 : 41;
  for (const char* name : kFixtureNames) {
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
  for (const char* name : {"older", "newer", "latest"}) {
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
                                     {text("lr"), Object(0.5)}})}})},
            {text("values"), dict({{text("none"), Object()},
                                   {text("text"), text("héllo")},
                                   {text("texts"), names}})}}));
  EXPECT_TRUE(contents->simplified.empty());
  EXPECT_EQ(contents->hdf5.soft_links.at("dangling"), "/nowhere");
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

// Random flips in all tensors of a file that have bytes, except those never written.
std::vector<Flip> random_flips(const Contents& contents, tests::Dice& dice) {
  std::vector<Flip> flips;
  for (const Tensor& tensor : contents.collection.tensors()) {
    if (tensor.shape.elements() == 0 || tensor.name == "never") continue;
    for (int i = 0; i < 5; ++i) {
      Flip flip{.tensor = tensor.name};
      flip.element = tensor.name == "unwritten" ? dice.below(2) + 2
                                                : dice.below(tensor.shape.elements());
      for (int64_t b = 0; b < bytes_of(tensor.dtype); ++b) {
        const auto bits =
            tensor.dtype == Dtype::kBool ? dice.below(2) : dice.below(256);
        flip.mask[static_cast<size_t>(b)] = static_cast<std::byte>(bits);
      }
      flips.push_back(flip);
    }
  }
  return flips;
}

std::map<std::string, Bytes> values_of(const Contents& contents) {
  std::map<std::string, Bytes> values;
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    values[contents.collection.tensor(t).name] = tests::canonical_bytes(contents, t);
  }
  return values;
}

void apply(const std::vector<Flip>& flips, const Contents& contents,
           std::map<std::string, Bytes>& values) {
  for (const Flip& flip : flips) {
    const TensorId t = contents.collection.find(flip.tensor).value();
    const int64_t bytes = bytes_of(contents.collection.tensor(t).dtype);
    for (int64_t b = 0; b < bytes; ++b) {
      values[flip.tensor][static_cast<size_t>(flip.element * bytes + b)] ^=
          flip.mask[static_cast<size_t>(b)];
    }
  }
}

Result<Contents> open_in(Env& env, const Path& path) {
  return open_hdf5(std::make_shared<MemorySource>(path, env.read_file(path).value()));
}

class Hdf5PatchTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    whole_ = make_posix_env()->read_file(kFixtures / GetParam()).value();
    ASSERT_OK(env_.write_file("file", whole_));
  }

  MemoryEnv env_;
  Bytes whole_;
};

TEST_P(Hdf5PatchTest, JustThePlannedBitsChangeAndTheInverseRestoresTheFile) {
  tests::Dice dice(3);
  for (int round = 0; round < 40; ++round) {
    const Contents before = open_in(env_, "file").value();
    auto expected = values_of(before);
    const auto flips = random_flips(before, dice);
    apply(flips, before, expected);
    const auto patch = plan_patch_hdf5(env_, "file", flips, Checksums::kConsistent);
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(env_, *patch));
    const auto after = open_in(env_, "file");
    ASSERT_OK(after);
    EXPECT_TRUE(values_of(*after) == expected);
    const auto report = verify_hdf5(FileSource::open(env_, "file").value(), "file", {});
    ASSERT_OK(report);
    EXPECT_TRUE(report->damage.empty());
    if (round % 4 == 3) continue;  // further rounds change a changed file
    ASSERT_OK(apply_patch(env_, inverse(*patch)));
    EXPECT_TRUE(values_of(*open_in(env_, "file")) == values_of(before));
    if (round < 3) {
      EXPECT_TRUE(env_.read_file("file").value() == whole_);
    }
  }
}

TEST_P(Hdf5PatchTest, RawChangesAreFoundWhereThereAreChecksums) {
  const std::array<std::byte, 16> mask{std::byte{4}};
  const std::vector<Flip> flips{{"group/packed", 100, mask}, {"group/sum", 9, mask}};
  const auto patch = plan_patch_hdf5(env_, "file", flips, Checksums::kRaw);
  ASSERT_OK(patch);
  ASSERT_OK(apply_patch(env_, *patch));
  const auto report = verify_hdf5(FileSource::open(env_, "file").value(), "file", {});
  ASSERT_OK(report);
  std::vector<std::string> damaged;
  for (const Damage& damage : report->damage) {
    damaged.push_back(damage.tensors.at(0));
    EXPECT_GT(damage.bytes, 0);
  }
  std::ranges::sort(damaged);
  EXPECT_EQ(damaged, (std::vector<std::string>{"group/packed", "group/sum"}));
}

TEST_P(Hdf5PatchTest, ElementsWithoutBytesAreRefused) {
  for (const auto& [name, element] : {std::pair("unwritten", 0), {"never", 0}}) {
    const std::vector<Flip> flips{{name, element, {std::byte{1}}}};
    EXPECT_ERROR(plan_patch_hdf5(env_, "file", flips, Checksums::kConsistent),
                 ErrorCode::kUnsupported);
  }
  const std::vector<Flip> flips{{"text", 0, {std::byte{1}}}};
  EXPECT_ERROR(plan_patch_hdf5(env_, "file", flips, Checksums::kConsistent),
               ErrorCode::kNotFound);
  EXPECT_TRUE(env_.read_file("file").value() == whole_);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Hdf5PatchTest,
                         ::testing::Values("older.h5", "newer.h5", "latest.h5"),
                         [](const auto& of) {
                           return Path(of.param).stem().native();
                         });

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

// One process checks all files, because importing h5py takes most of the time.
TEST(Hdf5InteropTest, H5pyReadsWhatWeWroteAndPatched) {
  const TempFolder folder;
  const auto env = make_posix_env();
  std::string command = fmt::format("'{}' '{}'", HOLDFAST_H5PY_PYTHON,
                                    (kFixtures / "check_written.py").native());
  const auto check = [&](const Path& path, const Contents& contents) {
    std::string text;
    for (const std::string& line : lines_of(contents)) text += line + "\n";
    ASSERT_OK(env->write_file(path.native() + ".txt", bytes_of(text)));
    command += fmt::format(" '{}'", path.native());
  };
  const Contents many = many_tensors();
  ASSERT_OK(env->write_file(folder.path() / "many.h5", written(many)));
  check(folder.path() / "many.h5", many);
  ASSERT_OK(
      env->write_file(folder.path() / "none.h5", written(tests::random_contents({}))));
  check(folder.path() / "none.h5", tests::random_contents({}));
  tests::Dice dice(7);
  for (const char* name : kFixtureNames) {
    const Path path = folder.path() / name;
    ASSERT_OK(env->write_file(path, env->read_file(kFixtures / name).value()));
    const auto flips = random_flips(open_path(path).value(), dice);
    const auto patch = plan_patch_hdf5(*env, path, flips, Checksums::kConsistent);
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(*env, *patch));
    check(path, open_path(path).value());
  }
  EXPECT_EQ(std::system(command.c_str()), 0);
}
#endif

// The text that h5dump prints about a file.
std::string dumped(const Path& path) {
  const Path out = path.native() + ".dump";
  const std::string command =
      fmt::format("h5dump '{}' >'{}'", path.native(), out.native());
  EXPECT_EQ(std::system(command.c_str()), 0) << path;
  return make_posix_env()->read_text(out).value();
}

// h5dump reads files with HDF5's own library, in the version that the system has.
TEST(Hdf5InteropTest, H5dumpReadsWhatWeWroteAndPatched) {
  if (std::system("command -v h5dump >/dev/null") != 0) {
    GTEST_SKIP() << "h5dump is not installed (Debian: hdf5-tools)";
  }
  const TempFolder folder;
  const auto env = make_posix_env();
  const Path many = folder.path() / "many.h5", few = folder.path() / "few.h5";
  ASSERT_OK(env->write_file(many, written(many_tensors())));
  const std::string text = dumped(many);
  for (const char* name : {"DATASET \"layer 0\"", "DATASET \"layer 599\"",
                           "GROUP \"dtypes\"", "DATASET \"C128\""}) {
    EXPECT_NE(text.find(name), text.npos) << name;
  }
  const std::vector<Tensor> tensors{{.name = "a/b", .dtype = Dtype::kU8, .shape = {4}}};
  const Contents numbers = tests::contents_with(
      tensors, {{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}});
  ASSERT_OK(env->write_file(few, written(numbers)));
  EXPECT_NE(dumped(few).find("(0): 1, 2, 3, 4"), std::string::npos);
  const std::vector<Flip> flips{{"a/b", 2, {std::byte{128}}}};
  const auto patch = plan_patch_hdf5(*env, few, flips, Checksums::kConsistent);
  ASSERT_OK(patch);
  ASSERT_OK(apply_patch(*env, *patch));
  EXPECT_NE(dumped(few).find("(0): 1, 2, 131, 4"), std::string::npos);
  tests::Dice dice(7);
  // That library may be too old for the latest structures.
  for (const char* name : {"older.h5", "newer.h5"}) {
    const Path path = folder.path() / name;
    ASSERT_OK(env->write_file(path, env->read_file(kFixtures / name).value()));
    const auto all = random_flips(open_path(path).value(), dice);
    const auto changed = plan_patch_hdf5(*env, path, all, Checksums::kConsistent);
    ASSERT_OK(changed);
    ASSERT_OK(apply_patch(*env, *changed));
    EXPECT_NE(dumped(path).find("DATASET \"packed\""), std::string::npos);
  }
}

}  // namespace
}  // namespace holdfast::hdf5_test

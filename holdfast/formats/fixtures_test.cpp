// What every format must do with the files that other libraries wrote: NumPy, torch,
// Keras, Chainer, TensorFlow, h5py and safetensors. Formats that we cannot write are
// tested here, too. A file in tests/fixtures is found by its name, so that none is
// forgotten.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "holdfast/base/json.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/patch_testing.h"

namespace holdfast::fixtures_test {
namespace {

using tests::Dice;
using tests::Snapshot;

const std::filesystem::path kFixtures = HOLDFAST_FIXTURES;

// The long run tries more places of each file.
bool longer() { return std::getenv("HOLDFAST_LONG") != nullptr; }

// A file or folder under tests/fixtures, with the files that belong to it.
struct Fixture {
  std::filesystem::path path;
  std::vector<std::filesystem::path> files;
};

// Whether `file` lies beside the fixture and belongs to it: a shard of an index.
bool belongs_to(const std::string& fixture, const std::string& file) {
  const auto is_shard = [&](std::string_view suffix, std::string_view between) {
    if (!fixture.ends_with(suffix)) return false;
    const auto stem = fixture.substr(0, fixture.size() - suffix.size());
    return file.starts_with(stem + std::string(between));
  };
  return file == fixture || is_shard(".index", ".data-") ||
         is_shard(".weights.json", "_");
}

bool is_fixture(const std::filesystem::path& path) {
  const std::string name = path.filename();
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (std::filesystem::is_directory(path)) {
    return name == "sharded" || std::filesystem::exists(path / ".metadata");
  }
  // The shards of Keras and of safetensors are tested with their index.
  if (name.find("_0000") != name.npos || name.find("-of-") != name.npos) return false;
  return ends(".index") || ends(".weights.json") || ends(".keras") || ends(".h5") ||
         ends(".nc") || ends(".npz") || ends(".npy") || ends(".pt") ||
         ends(".safetensors");
}

std::vector<Fixture> all_fixtures() {
  std::vector<Fixture> fixtures;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kFixtures)) {
    if (!is_fixture(entry.path())) continue;
    Fixture fixture{.path = entry.path(), .files = {}};
    const bool folder = entry.is_directory();
    for (const auto& file : std::filesystem::directory_iterator(
             folder ? entry.path() : entry.path().parent_path())) {
      if (folder || belongs_to(entry.path().filename(), file.path().filename())) {
        fixture.files.push_back(file.path());
      }
    }
    fixtures.push_back(std::move(fixture));
  }
  std::ranges::sort(fixtures, {}, &Fixture::path);
  return fixtures;
}

// The tests of one fixture, whose files lie in an Env of their own. All fixtures are run
// by one test, because a process for each would take longer than the test.
class FixtureRun {
 public:
  explicit FixtureRun(const Fixture& fixture) {
    const auto disk = make_posix_env();
    const bool folder = std::filesystem::is_directory(fixture.path);
    path_ = folder ? Path("files") : "files" / fixture.path.filename();
    for (const auto& file : fixture.files) {
      files_[("files" / file.filename()).native()] = disk->read_file(file).value();
      EXPECT_LE(std::filesystem::file_size(file), 64u << 10) << "a fixture is small";
    }
    put(env_);
  }

  void is_read_whole_in_boxes_and_into_another_format();
  void cut_it_is_refused();
  void with_any_byte_changed_it_is_read_or_refused();
  void patches_change_just_their_bits_and_are_undone();
  void a_crash_or_error_in_a_patch_leaves_the_old_or_the_new();

 private:
  void put(MemoryEnv& env) const {
    ASSERT_OK(env.create_folders("files"));
    for (const auto& [path, bytes] : files_) ASSERT_OK(env.write_file(path, bytes));
    ASSERT_OK(env.sync_names("files"));
  }

  // Opens the fixture and reads all of it. Returns the first error.
  Result<void> read_all() {
    const Contents contents = HOLDFAST_TRY(open_file(env_, path_));
    for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
      // A few bytes of a damaged file can stand for a gigabyte that was never written.
      Bytes bytes(static_cast<size_t>(
          std::min<int64_t>(contents.collection.tensor(t).bytes(), 1 << 20)));
      HOLDFAST_TRY(CanonicalStream(contents, t).read(bytes));
    }
    return {};
  }

  Result<FormatReport> verify() {
    const Format* format = HOLDFAST_TRY(format_of(env_, path_));
    if (format->verify == nullptr) return FormatReport();
    return format->verify(env_, path_, {});
  }

  static std::map<std::string, Bytes> values_of(const Contents& contents) {
    std::map<std::string, Bytes> values;
    for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
      values[contents.collection.tensor(t).name] = tests::canonical_bytes(contents, t);
    }
    return values;
  }

  // Flips of random elements. Elements of HDF5 that were never written have no bytes
  // that could change, so they are left out.
  std::vector<Flip> possible_flips(const Contents& contents, int count) {
    Dice dice(4);
    std::vector<Flip> flips;
    if (contents.collection.bytes() == 0) return flips;
    for (const Flip& flip : tests::random_flips(dice, contents, count)) {
      const auto patch = plan_patch(env_, path_, std::array{flip}, Checksums::kRaw);
      if (patch.ok()) {
        flips.push_back(flip);
      } else {
        EXPECT_ERROR(patch, ErrorCode::kUnsupported);
      }
    }
    return flips;
  }

  Path path_;
  Snapshot files_;
  MemoryEnv env_;
};

void FixtureRun::is_read_whole_in_boxes_and_into_another_format() {
  const auto contents = open_file(env_, path_);
  ASSERT_OK(contents);
  EXPECT_OK(contents->collection.check_covered());
  const auto report = verify();
  ASSERT_OK(report);
  EXPECT_TRUE(report->damage.empty()) << to_string(report->damage.front());
  Dice dice(1);
  for (TensorId t = 0; t < contents->collection.tensors().size(); ++t) {
    const Tensor& tensor = contents->collection.tensor(t);
    const Bytes whole = tests::canonical_bytes(*contents, t);
    if (whole.empty()) continue;
    const int64_t size = bytes_of(tensor.dtype);
    for (int i = 0; i < 4; ++i) {
      const int64_t first = dice.below(tensor.shape.elements());
      const int64_t last = first + 1 + dice.below(tensor.shape.elements() - first);
      Bytes seen;
      for (const Box& box : flat_range(Box::whole(tensor.shape), first, last)) {
        Bytes part(static_cast<size_t>(box.elements() * size));
        ASSERT_OK(read_box(*contents, t, box, Map::dense(box, size), part));
        seen.insert(seen.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(std::ranges::equal(
          seen, ByteView(whole).subspan(static_cast<size_t>(first * size),
                                        static_cast<size_t>((last - first) * size))))
          << tensor.name;
    }
  }
  ASSERT_OK(write_file(env_, "copy.safetensors", *contents));
  const auto copy = open_file(env_, "copy.safetensors");
  ASSERT_OK(copy);
  tests::expect_same_tensors(*copy, *contents);
  EXPECT_TRUE(copy->objects == contents->objects);
}

void FixtureRun::cut_it_is_refused() {
  for (const auto& [file, bytes] : files_) {
    const size_t step = std::max<size_t>(1, bytes.size() / (longer() ? 1000 : 40));
    for (size_t size = 0; size < bytes.size(); size += step) {
      ASSERT_OK(env_.write_file(file, ByteView(bytes).first(size)));
      const auto read = read_all();
      ASSERT_FALSE(read.ok()) << file << " cut to " << size;
      EXPECT_TRUE(read.error().code() == ErrorCode::kCorrupt ||
                  read.error().code() == ErrorCode::kUnsupported)
          << file << " cut to " << size << ": " << message_of(read);
    }
    ASSERT_OK(env_.write_file(file, bytes));
  }
  EXPECT_OK(read_all());
}

void FixtureRun::with_any_byte_changed_it_is_read_or_refused() {
  for (const auto& [file, bytes] : files_) {
    const size_t step = std::max<size_t>(1, bytes.size() / (longer() ? 1000 : 20));
    for (size_t i = 0; i < bytes.size(); i += step) {
      Bytes changed = bytes;
      changed[i] ^= std::byte{i % 3 == 0 ? uint8_t{255} : uint8_t{1}};
      ASSERT_OK(env_.write_file(file, changed));
      const auto read = read_all();
      EXPECT_TRUE(read.ok() || !read.error().message().empty());
      (void)verify();
    }
    ASSERT_OK(env_.write_file(file, bytes));
  }
}

void FixtureRun::patches_change_just_their_bits_and_are_undone() {
  const auto contents = open_file(env_, path_);
  ASSERT_OK(contents);
  const auto old = values_of(*contents);
  const std::vector<Flip> flips = possible_flips(*contents, 40);
  auto expected = old;
  tests::apply_flips(*contents, flips, expected);
  // Overlapping views of torch change together.
  const bool overlap = path_.filename() == "views.pt";
  for (const Checksums checksums : {Checksums::kRaw, Checksums::kConsistent}) {
    const auto patch = plan_patch(env_, path_, flips, checksums);
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(env_, *patch));
    EXPECT_EQ(tests::changed_bytes(files_, tests::files_under(env_, "files")),
              tests::predicted_bytes(*patch));
    const auto report = verify();
    if (checksums == Checksums::kConsistent) {
      ASSERT_OK(report);
      EXPECT_TRUE(report->damage.empty()) << to_string(report->damage.front());
      const auto now = open_file(env_, path_);
      ASSERT_OK(now);
      EXPECT_TRUE(overlap || values_of(*now) == expected);
    } else if (!report.ok()) {
      // Elements in an object header of HDF5 are covered by the header's checksum.
      EXPECT_ERROR(report, ErrorCode::kCorrupt);
    } else if (report->checked && expected != old) {
      EXPECT_FALSE(report->damage.empty());
    }
    ASSERT_OK(apply_patch(env_, inverse(*patch)));
    EXPECT_TRUE(tests::files_under(env_, "files") == files_);
  }
}

void FixtureRun::a_crash_or_error_in_a_patch_leaves_the_old_or_the_new() {
  const auto contents = open_file(env_, path_);
  ASSERT_OK(contents);
  const std::vector<Flip> flips = possible_flips(*contents, 3);
  if (flips.empty()) return;
  const auto patch = plan_patch(env_, path_, flips, Checksums::kConsistent);
  ASSERT_OK(patch);
  tests::expect_old_or_new([&](MemoryEnv& env) { put(env); }, path_, *patch);
}

// Runs the test with all fixtures, or with the first of each folder.
void run_all(void (FixtureRun::*test)(), bool only_first = false) {
  std::vector<Fixture> fixtures = all_fixtures();
  EXPECT_GE(fixtures.size(), 45u);
  if (only_first) {
    const auto same = [](const Fixture& one, const Fixture& other) {
      return one.path.parent_path() == other.path.parent_path();
    };
    fixtures.erase(std::unique(fixtures.begin(), fixtures.end(), same), fixtures.end());
  }
  for (const Fixture& fixture : fixtures) {
    SCOPED_TRACE(fixture.path.native());
    FixtureRun run(fixture);
    (run.*test)();
  }
}

TEST(FixturesTest, IsReadWholeInBoxesAndIntoAnotherFormat) {
  run_all(&FixtureRun::is_read_whole_in_boxes_and_into_another_format);
}

TEST(FixturesTest, CutItIsRefused) { run_all(&FixtureRun::cut_it_is_refused); }

TEST(FixturesTest, WithAnyByteChangedItIsReadOrRefused) {
  run_all(&FixtureRun::with_any_byte_changed_it_is_read_or_refused);
}

TEST(FixturesTest, PatchesChangeJustTheirBitsAndAreUndone) {
  run_all(&FixtureRun::patches_change_just_their_bits_and_are_undone);
}

TEST(FixturesTest, ACrashOrErrorInAPatchLeavesTheOldOrTheNew) {
  run_all(&FixtureRun::a_crash_or_error_in_a_patch_leaves_the_old_or_the_new,
          !longer());
}

// Whether a dict somewhere in the objects has this key with the value None.
bool has_none(const Object& objects, const std::string& name) {
  const auto* dict = objects.as<Object::Dict>();
  return dict != nullptr && std::ranges::any_of(dict->items, [&](const auto& item) {
           return (item.first == Object(name) && item.second.none()) ||
                  has_none(item.second, name);
         });
}

void expect_tensors(const Contents& contents, const Json& expected) {
  size_t tensors = 0;
  for (const auto& [name, value] : expected.items()) {
    const auto found = contents.collection.find(name);
    if (value["dtype"] == "none") {
      EXPECT_FALSE(found) << name;
      EXPECT_TRUE(has_none(contents.objects, name)) << name;
      continue;
    }
    ++tensors;
    ASSERT_TRUE(found) << name;
    const Tensor& tensor = contents.collection.tensor(*found);
    EXPECT_EQ(name_of(tensor.dtype), value["dtype"].get<std::string>()) << name;
    EXPECT_EQ(Json(tensor.shape.sizes()), value["shape"]) << name;
    EXPECT_EQ(to_hex(tests::canonical_bytes(contents, *found)),
              value["hex"].get<std::string>())
        << name;
  }
  EXPECT_EQ(contents.collection.tensors().size(), tensors);
}

// Expects that each file has the tensors that expected.json says its library wrote.
void expect_files(const Path& folder, size_t count) {
  const auto env = make_posix_env();
  const Json expected =
      parse_json(env->read_text(folder / "expected.json").value(), "expected.json")
          .value();
  const Json& files = expected.contains("files") ? expected["files"] : expected;
  EXPECT_EQ(files.size(), count);
  for (const auto& [file, one] : files.items()) {
    const auto contents = open_file(*env, folder / file);
    ASSERT_OK(contents);
    const bool more = one.contains("tensors");
    expect_tensors(*contents, more ? one["tensors"] : one);
    if (more) {
      EXPECT_EQ(Json(contents->metadata), one["metadata"]) << file;
    }
  }
}

TEST(ExpectedTest, FilesHaveTheBitsThatTheirLibrariesWrote) {
  expect_files(kFixtures / "formats/safetensors", 4);
  expect_files(kFixtures / "chainer", 8);
  expect_files(kFixtures / "keras", 3);
  expect_files(kFixtures / "keras2", 2);
  expect_files(kFixtures / "netcdf", 1);
  expect_files(kFixtures / "numpy", 10);
}

// The tensors of a file as expected.json has them.
Json described(const Contents& contents) {
  Json tensors = Json::object();
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    const Tensor& tensor = contents.collection.tensor(t);
    tensors[tensor.name] = {{"dtype", std::string(name_of(tensor.dtype))},
                            {"shape", tensor.shape.sizes()},
                            {"hex", to_hex(tests::canonical_bytes(contents, t))}};
  }
  return tensors;
}

// Real Chainer reads what we wrote and what a consistent patch changed, and refuses what
// a raw patch damaged. Only in HDF5 files without compression it cannot notice that.
TEST(ChainerTest, RealChainerReadsOursAndRefusesDamage) {
  const char* python = std::getenv("HOLDFAST_CHAINER_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "HOLDFAST_CHAINER_PYTHON names no Python";
  const Path fixtures = kFixtures / "chainer";
  const TempFolder folder;
  const auto env = make_posix_env();
  Json checks = Json::object();
  const auto add = [&](const Path& path, const Json& tensors) {
    const std::string name = path.filename();
    const bool model = name.find("model") != name.npos;
    checks[path.native()] = {{"kind", model ? "model" : "optimizer"},
                             {"tensors", tensors}};
  };
  for (const char* stem : {"model", "model_plain", "optimizer", "optimizer_plain"}) {
    for (const char* suffix : {".npz", ".h5"}) {
      const std::string file = std::string(stem) + suffix;
      const Contents contents = open_file(*env, fixtures / file).value();
      for (const char* other : {".npz", ".h5"}) {
        const Path written = folder.path() / fmt::format("ours-{}{}", file, other);
        ASSERT_OK(write_file(*env, written, contents));
        add(written, described(contents));
      }
      Dice dice(9);
      const std::vector<Flip> flips = tests::random_flips(dice, contents, 30);
      for (const bool raw : {false, true}) {
        const Path copy =
            folder.path() / fmt::format("{}-{}", raw ? "raw" : "patched", file);
        std::filesystem::copy_file(fixtures / file, copy);
        const auto patch = plan_patch(*env, copy, flips,
                                      raw ? Checksums::kRaw : Checksums::kConsistent);
        ASSERT_OK(patch);
        ASSERT_OK(apply_patch(*env, *patch));
        const bool noticed = raw && !file.ends_with("_plain.h5");
        add(copy, noticed ? Json("damaged") : described(open_file(*env, copy).value()));
      }
    }
  }
  const Path list = folder.path() / "list.json";
  ASSERT_OK(env->write_file(list, bytes_of(checks.dump())));
  const std::string command =
      fmt::format("'{}' '{}' '{}'", python, (fixtures / "check_written.py").native(),
                  list.native());
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace holdfast::fixtures_test

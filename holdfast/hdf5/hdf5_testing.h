// What the tests of HDF5 files share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "holdfast/base/testing.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/hdf5/hdf5.h"

namespace holdfast::hdf5_test {

inline const std::filesystem::path kAttacks = HOLDFAST_HDF5_ATTACKS;
inline const std::filesystem::path kFixtures = HOLDFAST_HDF5_FIXTURES;

// Files with the structures of HDF5 1.6, 1.8, and 1.10 and later.
inline constexpr std::array kFixtureNames{"older.h5", "newer.h5", "latest.h5"};

inline Result<Contents> open_path(const Path& path) {
  const auto env = make_posix_env();
  // A source of its own memory, because the Env does not live as long as the contents.
  return open_hdf5(std::make_shared<MemorySource>(path.filename(),
                                                  HOLDFAST_TRY(env->read_file(path))));
}

// What random_files.py writes about a file: one line for each path to a tensor.
inline std::vector<std::string> lines_of(const Contents& contents) {
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

inline std::vector<std::string> read_lines(const Path& path) {
  std::istringstream text(make_posix_env()->read_text(path).value());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

inline Bytes written(const Contents& contents) {
  MemorySink sink;
  EXPECT_OK(write_hdf5(sink, contents));
  return std::move(sink).take_bytes();
}

inline Contents contents_of(Bytes bytes) {
  return open_hdf5(std::make_shared<MemorySource>("written", std::move(bytes))).value();
}

// More links in a group than one node of its B-tree can have, and groups in groups.
inline Contents many_tensors() {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 600; ++i) {
    tensors.push_back({.name = fmt::format("layer {}", i), .shape = {i % 3, 2}});
  }
  for (const DtypeInfo& dtype : all_dtypes()) {
    if (dtype.name.starts_with("F8")) continue;
    tensors.push_back({.name = fmt::format("dtypes/é/{}", dtype.name),
                       .dtype = dtype.dtype,
                       .shape = {2, 3}});
    // numpy makes 1 of any other byte of a scalar that is a boolean.
    if (dtype.dtype == Dtype::kBool) continue;
    tensors.push_back(
        {.name = fmt::format("dtypes/scalar/{}", dtype.name), .dtype = dtype.dtype});
  }
  return tests::random_contents(std::move(tensors));
}

}  // namespace holdfast::hdf5_test

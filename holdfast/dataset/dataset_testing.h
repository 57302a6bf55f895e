// For tests: writes files of a corpus into a temporary folder.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "holdfast/base/testing.h"
#include "holdfast/dataset/corpus.h"
#include "holdfast/env/posix_env.h"

namespace holdfast::tests {

class CorpusTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() / name; }

  std::string write(const std::string& name, const std::string& bytes) {
    const Path file = path(name);
    EXPECT_OK(env_->create_folders(file.parent_path()));
    EXPECT_OK(env_->write_file(file, bytes_of(bytes)));
    return file;
  }

  Result<std::unique_ptr<Corpus>> open(const std::string& name, CorpusOptions options = {}) {
    return Corpus::open(*env_, {path(name)}, std::move(options));
  }

  static std::vector<std::string> samples_of(const Corpus& corpus) {
    std::vector<std::string> samples;
    for (int64_t i = 0; i < corpus.samples(); ++i) {
      samples.emplace_back(text_of(corpus.read(i).value()));
    }
    return samples;
  }

  // Changes the time of the file's last change.
  void set_modified(const std::string& file, Duration later) const {
    std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + later);
  }

  // The samples of a file of text, or of the message why there are none.
  std::vector<std::string> lines(const std::string& bytes) {
    const std::string name = std::to_string(++count_) + ".jsonl";
    write(name, bytes);
    const auto corpus = open(name);
    if (!corpus.ok()) return {"error: " + corpus.error().message()};
    return samples_of(**corpus);
  }

  const std::unique_ptr<Env> env_ = make_posix_env();
  const TempFolder folder_;

 private:
  int count_ = 0;
};

// The numbers in the memory order of files: little-endian.
template <typename T>
std::string packed(const std::vector<T>& numbers) {
  std::string bytes;
  for (const T number : numbers) {
    std::byte word[sizeof(T)];
    store_little_endian(static_cast<std::make_unsigned_t<T>>(number), word);
    bytes.append(reinterpret_cast<const char*>(word), sizeof(T));
  }
  return bytes;
}

// A .idx file of Megatron-LM. `bounds` are the first sequences of documents, and the end.
struct MegatronTable {
  std::string mark{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t dtype = 8;  // u16
  std::vector<int32_t> tokens{};
  std::vector<int64_t> begins{};
  std::vector<int64_t> bounds{};

  std::string bytes() const {
    return mark + packed<uint64_t>({version}) + static_cast<char>(dtype) +
           packed<uint64_t>({tokens.size(), bounds.size()}) + packed(tokens) +
           packed(begins) + packed(bounds);
  }
};

}  // namespace holdfast::tests

#include "holdfast/env/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "holdfast/env/errno_error.h"

namespace holdfast {
namespace {

// Closes the descriptor. A mapping does not need it.
struct Descriptor {
  int number;
  ~Descriptor() { ::close(number); }
};

}  // namespace

Result<MappedFile> MappedFile::open(const Path& path, int64_t bytes) {
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (number < 0) return errno_error(errno, "open", path);
  const Descriptor descriptor{number};
  struct stat info {};
  if (::fstat(number, &info) != 0) return errno_error(errno, "fstat", path);
  if (!S_ISREG(info.st_mode) || info.st_size != bytes || bytes == 0) {
    return corrupt("{}: {} bytes; expected a file of {}", path.native(), info.st_size,
                   bytes);
  }
  const auto size = static_cast<size_t>(bytes);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, number, 0);
  if (memory == MAP_FAILED) return errno_error(errno, "mmap", path);
  return MappedFile(ByteSpan(static_cast<std::byte*>(memory), size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : memory_(std::exchange(other.memory_, {})) {}

MappedFile::~MappedFile() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

}  // namespace holdfast

// Memory for tests of what libraries read and write behind the bytes that they are given.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "holdfast/base/bytes.h"

namespace holdfast {

// Memory that ends where the next page may not be touched.
class AtTheEndOfAPage {
 public:
  explicit AtTheEndOfAPage(size_t count)
      : page_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))),
        mapped_((count / page_ + 2) * page_),
        memory_(static_cast<std::byte*>(::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        bytes_(memory_ + mapped_ - page_ - count, count) {
    ::mprotect(memory_ + mapped_ - page_, page_, PROT_NONE);
  }
  explicit AtTheEndOfAPage(ByteView bytes) : AtTheEndOfAPage(bytes.size()) {
    std::ranges::copy(bytes, bytes_.begin());
  }
  ~AtTheEndOfAPage() { ::munmap(memory_, mapped_); }
  AtTheEndOfAPage(const AtTheEndOfAPage&) = delete;
  AtTheEndOfAPage& operator=(const AtTheEndOfAPage&) = delete;

  ByteSpan bytes() { return bytes_; }

 private:
  size_t page_, mapped_;
  std::byte* memory_;
  ByteSpan bytes_;
};

}  // namespace holdfast

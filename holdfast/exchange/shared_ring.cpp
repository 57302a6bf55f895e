#include "holdfast/exchange/shared_ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <new>

#include "holdfast/base/number_text.h"
#include "holdfast/env/errno_error.h"

namespace holdfast {
namespace {

constexpr int64_t kHeaderBytes = 4096;
constexpr int64_t kRingBytes =
    kHeaderBytes + SharedRing::kSlotBytes * int64_t{SharedRing::kSlots};
constexpr timespec kMoment{.tv_sec = 0, .tv_nsec = 50'000'000};

// Waits for a moment while the word has this value.
void wait_while(std::atomic<uint32_t>& word, uint32_t value) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &kMoment,
            nullptr, 0);
}

void add_one_and_wake(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, 1, nullptr,
            nullptr, 0);
}

// Takes a number and what ends it off the front of the text.
template <typename T>
bool take_word(std::string_view& text, T& number) {
  const auto found = take_number<T>(text);
  if (!found) return false;
  number = *found;
  if (!text.empty()) text.remove_prefix(1);
  return true;
}

}  // namespace

Result<std::unique_ptr<SharedRing>> SharedRing::map(int descriptor) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  void* memory =
      ::mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int failed = errno;
    ::close(descriptor);
    return errno_error(failed, "mmap", "shared ring");
  }
  return std::unique_ptr<SharedRing>(
      new SharedRing(static_cast<std::byte*>(memory), descriptor));
}

Result<std::unique_ptr<SharedRing>> SharedRing::create(Env& env) {
  const int descriptor = ::memfd_create("holdfast", MFD_CLOEXEC);
  if (descriptor < 0) return errno_error(errno, "memfd_create", "shared ring");
  // Without the pages, a process that touches the ring would be killed if the memory
  // runs out.
  if (const int failed = ::posix_fallocate(descriptor, 0, kRingBytes); failed != 0) {
    ::close(descriptor);
    return errno_error(failed, "fallocate", "shared ring");
  }
  std::unique_ptr<SharedRing> ring = HOLDFAST_TRY(map(descriptor));
  new (ring->memory_) Header{.number = env.random64()};
  return ring;
}

Result<std::unique_ptr<SharedRing>> SharedRing::open(std::string_view address) {
  int64_t process = 0;
  int number = -1;
  uint64_t expected = 0;
  if (!take_word(address, process) || !take_word(address, number) ||
      !take_word(address, expected)) {
    return invalid("shared ring: not an address; expected three numbers");
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", process, number);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return errno_error(errno, "open", path);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || info.st_size != kRingBytes) {
    ::close(descriptor);
    return invalid("{}: not a shared ring; expected {} bytes", path, kRingBytes);
  }
  std::unique_ptr<SharedRing> ring = HOLDFAST_TRY(map(descriptor));
  ring->close_descriptor();
  if (ring->header().number == expected) return ring;
  return invalid("{}: another shared ring; expected the one of the peer", path);
}

SharedRing::~SharedRing() {
  ::munmap(memory_, kRingBytes);
  close_descriptor();
}

std::string SharedRing::address() const {
  return fmt::format("{} {} {}", ::getpid(), descriptor_, header().number);
}

void SharedRing::close_descriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

ByteSpan SharedRing::slot(uint32_t number) const {
  const int64_t at = kHeaderBytes + kSlotBytes * int64_t{number % kSlots};
  return {memory_ + at, static_cast<size_t>(kSlotBytes)};
}

ByteSpan SharedRing::free_slot() {
  const uint32_t filled = header().filled.load(std::memory_order_relaxed);
  for (int look = 0; look < 2; ++look) {
    const uint32_t emptied = header().emptied.load(std::memory_order_acquire);
    if (filled - emptied < kSlots) return slot(filled);
    if (look == 0) wait_while(header().emptied, emptied);
  }
  return {};
}

void SharedRing::publish() { add_one_and_wake(header().filled); }

void SharedRing::give_up() {
  header().given_up.store(1, std::memory_order_release);
  // The receiver looks at given_up when it finds no slot: it need not be woken.
}

ByteView SharedRing::filled_slot() {
  const uint32_t emptied = header().emptied.load(std::memory_order_relaxed);
  for (int look = 0; look < 2; ++look) {
    const uint32_t filled = header().filled.load(std::memory_order_acquire);
    if (filled != emptied) return slot(emptied);
    if (look == 0) wait_while(header().filled, filled);
  }
  return {};
}

void SharedRing::release() { add_one_and_wake(header().emptied); }

bool SharedRing::given_up() const {
  return header().given_up.load(std::memory_order_acquire) != 0;
}

}  // namespace holdfast

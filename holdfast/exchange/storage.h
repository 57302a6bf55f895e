// Where the pieces of a rank get their memory from when an exchange makes new ones.
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "holdfast/base/mutex.h"
#include "holdfast/memory/local_state.h"

namespace holdfast {

// Calls come from several threads, one at a time.
class PieceStorage {
 public:
  virtual ~PieceStorage() = default;

  // Memory for a new piece. It has any contents. kNoSpace if there is none.
  virtual Result<LocalPiece> make(const std::shared_ptr<const Tensor>& tensor,
                                  const Box& box) = 0;
  // An old piece is not needed any more.
  virtual void release(const LocalPiece& old) = 0;
  // The exchange failed, and this new piece is not needed.
  virtual void discard(const LocalPiece& made) = 0;
  // Why the memory of the storage cannot be used, if it cannot. Called first.
  virtual Result<void> check() const { return {}; }
  // True if this old piece, whose box the rank has afterwards, too, stays where it is. If
  // false, make() is called for the box.
  virtual bool keeps(const LocalPiece& /*old*/) const { return true; }
  // The device that make() takes memory of; null for the host.
  virtual const Device* device() const { return nullptr; }
  // Whether make() takes memory of the host that was free before.
  virtual bool takes_host_memory() const { return device() == nullptr; }
};

// Memory of the host, one block for each piece, row-major without gaps. Large blocks ask
// for huge pages. make() succeeds even if there is too little memory, because the system
// provides memory only when it is written to; so exchange() checks first whether there is
// enough. release() frees only what make() has made: other old pieces belong to the caller.
// The destructor frees all memory that is left.
class HostStorage : public PieceStorage {
 public:
  HostStorage() = default;
  ~HostStorage() override;
  HostStorage(const HostStorage&) = delete;
  HostStorage& operator=(const HostStorage&) = delete;

  Result<LocalPiece> make(const std::shared_ptr<const Tensor>& tensor,
                          const Box& box) override;
  void release(const LocalPiece& old) override { free(old); }
  void discard(const LocalPiece& made) override { free(made); }
  // How many bytes of pieces it has made and not freed.
  int64_t bytes() const;

 private:
  void free(const LocalPiece& piece);

  mutable Mutex mutex_;
  std::map<std::byte*, size_t> blocks_ HOLDFAST_GUARDED_BY(mutex_);  // mapped bytes
  int64_t bytes_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

// Memory that is there already: new pieces are the given ones. A given piece may be an old
// one, in the same memory, which then stays as it is. The list and its memory must outlive
// the storage.
class GivenStorage : public PieceStorage {
 public:
  explicit GivenStorage(const LocalPieces& pieces);

  // kInvalid, naming tensors, if pieces do not fit their memory, or share it.
  Result<void> check() const override;

  // The box must be that of a given piece.
  Result<LocalPiece> make(const std::shared_ptr<const Tensor>& tensor,
                          const Box& box) override;
  void release(const LocalPiece&) override {}
  void discard(const LocalPiece&) override {}
  bool keeps(const LocalPiece& old) const override;
  bool takes_host_memory() const override { return false; }

 private:
  const LocalPieces& given_;
  std::map<std::pair<std::string_view, Box>, const LocalPiece*> pieces_;
};

// Memory of a device.
class DeviceStorage : public PieceStorage {
 public:
  // kNoSpace if fewer than `reserve` bytes of the device would stay free. The device
  // must outlive the storage.
  explicit DeviceStorage(const Device& device, int64_t reserve = 0)
      : device_(device), reserve_(reserve) {}
  ~DeviceStorage() override;
  DeviceStorage(const DeviceStorage&) = delete;
  DeviceStorage& operator=(const DeviceStorage&) = delete;

  Result<LocalPiece> make(const std::shared_ptr<const Tensor>& tensor,
                          const Box& box) override;
  void release(const LocalPiece& old) override { free(old); }
  void discard(const LocalPiece& made) override { free(made); }
  const Device* device() const override { return &device_; }

 private:
  void free(const LocalPiece& piece);

  const Device& device_;
  const int64_t reserve_;
  Mutex mutex_;
  std::map<std::byte*, ByteSpan> blocks_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast

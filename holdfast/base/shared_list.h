// A list that is cheap to copy: copies share their items until one of them is edited.
// Two copies of one list compare equal without a look at the items. So a result that
// was computed from a list can be kept and used again while the caller passes the same
// list.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace holdfast {

template <typename T>
class SharedList {
 public:
  SharedList() = default;
  SharedList(std::vector<T> items)  // NOLINT: a vector converts implicitly
      : items_(std::make_shared<std::vector<T>>(std::move(items))) {}

  const T* data() const { return items_ == nullptr ? nullptr : items_->data(); }
  size_t size() const { return items_ == nullptr ? 0 : items_->size(); }
  bool empty() const { return size() == 0; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  const T& operator[](size_t i) const { return data()[i]; }
  const T& back() const { return data()[size() - 1]; }

  // True if both are copies of one list. Does not look at the items.
  bool shares_with(const SharedList& other) const { return items_ == other.items_; }

  // The items, for changing. Copies the items first if other lists share them.
  std::vector<T>& edit() {
    if (items_ == nullptr || items_.use_count() > 1) {
      items_ = std::make_shared<std::vector<T>>(begin(), end());
    }
    return *items_;
  }

  friend bool operator==(const SharedList& a, const SharedList& b) {
    return a.items_ == b.items_ || std::ranges::equal(a, b);
  }

 private:
  std::shared_ptr<std::vector<T>> items_;
};

}  // namespace holdfast

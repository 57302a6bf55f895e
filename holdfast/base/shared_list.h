// A list whose copies cost nothing: they share it until one of them is edited. Two copies of
// one are found equal without a look at what is in them, so what was made of a list can be
// kept for as long as its caller passes the same one.
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
  SharedList(std::vector<T> items)  // NOLINT: a vector is one
      : items_(std::make_shared<std::vector<T>>(std::move(items))) {}

  const T* data() const { return items_ == nullptr ? nullptr : items_->data(); }
  size_t size() const { return items_ == nullptr ? 0 : items_->size(); }
  bool empty() const { return size() == 0; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  const T& operator[](size_t i) const { return data()[i]; }
  const T& back() const { return data()[size() - 1]; }

  // True if both are copies of one list. Looks at nothing that is in them.
  bool shares_with(const SharedList& other) const { return items_ == other.items_; }

  // A list of its own, which others no longer share.
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

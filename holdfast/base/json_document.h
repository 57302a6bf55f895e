// Builds a JSON document from the events of the tokenizer, for readers that decide
// themselves what they accept.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace holdfast {

// A Json or an OrderedJson. The open containers stand on a stack of our own, so that a
// deep document cannot exhaust the stack of the thread. The text must have no key twice.
// OrderedJson::parse searches every new key among the keys before it, which takes
// minutes for the dict of a million tensors; this does not.
template <typename Document>
class JsonDocument : public nlohmann::json_sax<Document> {
 public:
  using Base = nlohmann::json_sax<Document>;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(typename Base::number_integer_t value) override {
    return put(value);
  }
  bool number_unsigned(typename Base::number_unsigned_t value) override {
    return put(value);
  }
  bool number_float(typename Base::number_float_t value,
                    const typename Base::string_t&) override {
    return put(value);
  }
  bool string(typename Base::string_t& value) override { return put(std::move(value)); }
  bool binary(typename Base::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Document::object()); }
  bool start_array(std::size_t) override { return open(Document::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(typename Base::string_t& key) override {
    open_.back().key = std::move(key);
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

  Document take() && { return std::move(root_); }

 protected:
  size_t depth() const { return open_.size(); }
  const Document& innermost() const { return open_.back().container; }

 private:
  struct Open {
    Document container;
    std::string key = {};  // of the next value, in an object
  };

  bool put(Document value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& inner = open_.back(); inner.container.is_array()) {
      inner.container.push_back(std::move(value));
    } else {
      auto& members = inner.container.template get_ref<typename Document::object_t&>();
      if constexpr (requires { members.emplace_back(inner.key, value); }) {
        members.emplace_back(std::move(inner.key), std::move(value));
      } else {
        members.emplace(std::move(inner.key), std::move(value));
      }
    }
    return true;
  }

  bool open(Document container) {
    open_.push_back({std::move(container)});
    return true;
  }

  bool close() {
    Document done = std::move(open_.back().container);
    open_.pop_back();
    return put(std::move(done));
  }

  std::vector<Open> open_;
  Document root_;
};

}  // namespace holdfast

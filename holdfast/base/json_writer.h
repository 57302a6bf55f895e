// Writes JSON value by value, without a tree in between: a document may have 100,000
// entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace holdfast {

// How a document looks.
struct JsonStyle {
  int indent = -1;     // the spaces of a level; below 0 all stands in one line
  bool ascii = false;  // whether other characters become escapes
  // Documents whose bytes have a digest: every entry of an outer list begins a line,
  // numbers have the fewest digits, and a text that is not UTF-8 is a bug. In other
  // documents U+FFFD takes the place of bytes that are not UTF-8.
  bool rows = false;
};
inline constexpr JsonStyle kCompactJson{};
inline constexpr JsonStyle kDigestedJson{.rows = true};

// Appends a document to a text, value by value, without a tree in between.
class JsonWriter {
 public:
  explicit JsonWriter(JsonStyle style) : style_(style) {}

  // Opens an object by '{', an array by '['.
  void open(char bracket);
  void close();
  // Comes before each value of an object, and each value of an array.
  void key(std::string_view key);
  void item();
  // The next key or item begins a line, if the style has rows.
  void line() { line_ = style_.rows; }
  void put_null() { out_ += "null"; }
  void put(bool value) { out_ += value ? "true" : "false"; }
  void put(int64_t value);
  void put(uint64_t value);
  // What is not finite becomes the text "nan", "inf" or "-inf": JSON has no numbers for
  // it.
  void put(double value);
  void put(std::string_view value);

  // How many containers are open.
  size_t depth() const { return open_.size(); }
  std::string take() && { return std::move(out_); }

 private:
  struct Open {
    char bracket;
    bool empty = true;
  };
  void begin_value();
  void indent();

  const JsonStyle style_;
  std::string out_;
  std::vector<Open> open_;
  bool line_ = false;
};

// A member of an object whose value is a text.
struct TextMember {
  std::string_view key{};
  std::string_view value{};
};

// Writes a JSON text again, in the style of the writer and in the order that it has. `set`,
// if it has a key, takes the place of the document's member of that key, or comes last. The
// text must be JSON.
void copy_json(JsonWriter& out, std::string_view text, const TextMember& set = {});

}  // namespace holdfast

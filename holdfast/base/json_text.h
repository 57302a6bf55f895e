// JSON written by hand: for files of 100,000 entries, where a tree of values in between
// would cost more than the file, and for numbers that must keep every bit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast {

// Well-formed UTF-8, as JSON demands of its text: nothing overlong, no surrogates,
// nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// The text in quotes, escaped. It must be UTF-8, which only the caller can name.
void append_json_string(std::string& out, std::string_view text);
void append_json_integer(std::string& out, int64_t number);
// A finite number in the fewest digits that read back as the same bits, with a '.' or an
// 'e' that tells it from an integer.
void append_json_double(std::string& out, double number);

}  // namespace holdfast

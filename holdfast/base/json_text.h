// Writes JSON text directly. It is for files of 100,000 entries, where a tree of values
// in between would cost more than the file, and for numbers that must keep every bit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast {

// True if the text is well-formed UTF-8, as JSON demands: no overlong forms, no
// surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// Appends the text in quotes, escaped. The caller must make sure that it is UTF-8,
// because only the caller can name the text in an error.
void append_json_string(std::string& out, std::string_view text);
void append_json_integer(std::string& out, int64_t number);
// Appends a number in the fewest digits that read back as the same bits, with a '.' or
// an 'e' that tells it from an integer. Aborts unless the number is finite.
void append_json_double(std::string& out, double number);

// Formats a name from an unknown source for a message: quoted, escaped and short.
std::string shown(std::string_view name);

}  // namespace holdfast

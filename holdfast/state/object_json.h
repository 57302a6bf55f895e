// An Object as JSON, so that objects can be kept in a file that people can read.
//
// Values that JSON has are written as they are: null, true, 3, "text", [list] and
// {dict} with string keys. A value that JSON does not have is a JSON object with one
// member, whose key begins with '$':
//
//   {"$tuple": [1, 2]}             {"$bytes": "00ff"}
//   {"$dict": [[key, value], …]}   {"$int": "9223372036854775808"}   outside int64_t
//   {"$tensor": "name"}            {"$float": "nan"}   or inf, -inf, 16 digits
//
// "$dict" is for dicts with keys that are no strings or begin with '$'. Finite floats
// are numbers with a '.' or an 'e', and keep every bit. A NaN other than the usual one
// is written as the 16 hexadecimal digits of its bits. Every Object has exactly one
// text.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"
#include "holdfast/state/object.h"

namespace holdfast {

// Writes an Object. kInvalid, naming the place in the tree, for text that is not UTF-8,
// a key that is repeated or is a list or dict, a BigInteger that is not a number
// outside int64_t, and trees deeper than kMaxObjectDepth.
Result<std::string> encode_object(const Object& object);

// Reads an Object. kCorrupt, naming `where`, for text that is no such tree. White space
// and other spellings of the same numbers and texts are allowed.
Result<Object> decode_object(ByteView json, std::string_view where);

}  // namespace holdfast

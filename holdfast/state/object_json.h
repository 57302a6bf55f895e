// An Object as JSON, so that what is no tensor can be kept and read by eye.
//
// Natural where JSON is: null, true, 3, "text", [list] and {dict} with string keys. What
// JSON does not know is an object of one member whose key begins with '$':
//
//   {"$tuple": [1, 2]}             {"$bytes": "00ff"}
//   {"$dict": [[key, value], …]}   {"$int": "9223372036854775808"}   outside int64_t
//   {"$tensor": "name"}            {"$float": "nan"}                 or inf, -inf, 16 digits
//
// "$dict" is for keys that are no strings or begin with '$'. Finite floats are numbers
// with a '.' or an 'e', which keep every bit; a NaN other than the usual one is the 16
// hexadecimal digits of its bits. One Object has one text.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"
#include "holdfast/state/object.h"

namespace holdfast {

// kInvalid, naming the place in the tree, for text that is not UTF-8, a key that is
// repeated or of a kind that keys are not, a BigInteger that is none, and trees deeper
// than kMaxObjectDepth.
Result<std::string> encode_object(const Object& object);

// kCorrupt, naming `where`, for what is no such tree. White space and other spellings of
// the same numbers and text are allowed.
Result<Object> decode_object(ByteView json, std::string_view where);

}  // namespace holdfast

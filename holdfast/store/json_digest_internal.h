// A JSON document that carries its own digest ends with this member:
//
//   ...,
//   "digest":"<32 hexadecimal digits>"}
//
// The digits are the XXH3-128 digest of all bytes before them. Their place and width
// are fixed, so that a reader can check the digest before it parses any byte.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/base/result.h"

namespace holdfast {

// Completes the JSON object `out`, whose closing bracket is still missing: appends the
// digest of all bytes so far and the bracket.
void put_digest(std::string& out);

// Whether the text ends in the form that put_digest() writes. Does not check the
// digits.
bool ends_with_digest(std::string_view text);

// Returns the object up to the digest, without its closing bracket. Fails with
// kCorrupt, naming `where`, if there is no digest or if it does not match the bytes.
Result<std::string_view> check_digest(std::string_view text, const std::string& where);

}  // namespace holdfast

// The last member of a JSON document that carries its own digest:
//
//   ...,
//   "digest":"<32 hexadecimal digits>"}
//
// The digits are XXH3-128 over all bytes before them. Their place and width are fixed, so
// that a reader finds the digest before it believes any byte.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/base/result.h"

namespace holdfast {

// Ends the document `out`, an object whose last bracket is still missing.
void put_digest(std::string& out);

// Whether the text ends as put_digest() would end it, whatever the digits are.
bool ends_with_digest(std::string_view text);

// The object up to the digest, without its last bracket. kCorrupt, naming `where`, if there
// is no digest or it is another.
Result<std::string_view> check_digest(std::string_view text, const std::string& where);

}  // namespace holdfast

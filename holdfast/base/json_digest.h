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

#include "holdfast/base/bytes.h"
#include "holdfast/base/json_fields.h"
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

// Writes a struct as such a document. All texts must be UTF-8.
template <typename T>
Bytes encode_with_digest(const T& value) {
  std::string text = to_json_text(value, kDigestedJson);
  text.pop_back();
  put_digest(text);
  return copy_of(bytes_of(text));
}

// Fails with kCorrupt, naming `where`, if the digest is wrong or fields() refuses the
// document, because this library wrote it, and with kUnsupported for a newer version.
template <typename T>
Result<T> decode_with_digest(ByteView json, const std::string& where) {
  const std::string_view members = HOLDFAST_TRY(check_digest(text_of(json), where));
  return from_json<T>(std::string(members) + "}", where, ErrorCode::kCorrupt);
}

}  // namespace holdfast

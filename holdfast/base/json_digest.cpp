#include "holdfast/base/bytes.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/base/json_digest.h"

namespace holdfast {
namespace {

constexpr std::string_view kTailStart = ",\n\"digest\":\"";
constexpr std::string_view kTailEnd = "\"}\n";
constexpr size_t kDigestDigits = 32;

}  // namespace

void put_digest(std::string& out) {
  out += kTailStart;
  out += xxh3_128(bytes_of(out)).hex();
  out += kTailEnd;
}

bool ends_with_digest(std::string_view text) {
  const size_t tail = kDigestDigits + kTailEnd.size();
  return text.size() > tail && text.ends_with(kTailEnd) &&
         text.substr(0, text.size() - tail).ends_with(kTailStart);
}

Result<std::string_view> check_digest(std::string_view text, const std::string& where) {
  if (!ends_with_digest(text)) {
    return corrupt("{}: {} bytes without a digest at the end; expected one", where,
                   text.size());
  }
  const std::string_view before =
      text.substr(0, text.size() - kDigestDigits - kTailEnd.size());
  const std::string digest = xxh3_128(bytes_of(before)).hex();
  if (text.substr(before.size(), kDigestDigits) != digest) {
    return corrupt("{}: its bytes have the digest {}; expected the digest at its end",
                   where, digest);
  }
  return before.substr(0, before.size() - kTailStart.size());
}

}  // namespace holdfast

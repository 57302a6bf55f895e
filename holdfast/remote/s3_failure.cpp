// failure_of() of s3_client_internal.h: turns the answers of S3 servers into errors.
#include <algorithm>

#include "holdfast/remote/s3_client_internal.h"
#include "holdfast/remote/s3_xml_internal.h"

namespace holdfast {
namespace {

// The server's word for the failure, such as NoSuchKey; empty if the answer has none.
// Only its letters and digits are kept, because it goes into messages.
std::string word_of(const HttpAnswer& answer) {
  const Result<XmlElement> root = parse_xml(answer.body, "");
  if (!root.ok() || root->name != "Error") return "";
  std::string word = root->text_of("Code").substr(0, 64);
  std::erase_if(word, [](char c) {
    return !((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
             (c >= '0' && c <= '9'));
  });
  return word;
}

Error denied(const std::string& bucket, const std::string& word) {
  const char* advice = "check the access key and secret";
  if (word == "AccessDenied") {
    advice = "check the access key and secret, and what they permit";
  } else if (word == "RequestTimeTooSkewed") {
    advice = "check this machine's clock";
  } else if (word == "ExpiredToken") {
    advice = "renew the session token";
  }
  return invalid("{}: access denied ({}); {}", bucket, word, advice);
}

bool is_full(int status, const std::string& word) {
  return status == 507 || word.find("Quota") != word.npos ||
         word.find("StorageFull") != word.npos;
}

bool is_passing(int status, const std::string& word) {
  return status >= 500 || status == 429 || status == 408 || word == "RequestTimeout";
}

}  // namespace

S3Failure failure_of(const HttpAnswer& answer, const std::string& bucket,
                     const std::string& where) {
  const int status = answer.status;
  const std::string found = word_of(answer);
  const std::string word = found.empty() ? fmt::format("status {}", status) : found;
  if (is_full(status, found)) return {no_space("{}: no space ({})", where, word)};
  if (status == 401 || status == 403) return {denied(bucket, word)};
  if (found == "NoSuchBucket") return {not_found("{}: no such bucket", bucket)};
  if (status == 404) return {not_found("{}: no such object ({})", where, word)};
  if (status == 405 || status == 501) {
    return {unsupported("{}: the server does not know this call ({})", where, word)};
  }
  if (status == 409 || status == 412) {
    return {conflict("{}: refused because of another request ({})", where, word)};
  }
  if (status == 416)
    return {
        corrupt("{}: the object became shorter after it was opened ({})", where, word)};
  if (status >= 300 && status < 400) {
    return {
        invalid("{}: redirected ({}); expected the endpoint and region of the bucket",
                bucket, word)};
  }
  if (is_passing(status, found)) {
    return {unavailable("{}: the server cannot answer now ({})", where, word), true};
  }
  if (status >= 400) return {invalid("{}: refused by the server ({})", where, word)};
  return {unavailable("{}: answer with status {}; expected 200", where, status)};
}

}  // namespace holdfast

// Recognises the scheme at the start of a place's name ("s3://", "gs://").
#include "holdfast/store/location.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace holdfast {
namespace {

constexpr std::string_view kObjectScheme = "s3";

// Schemes that are recognised also before a single slash ("gs:/bucket"). Any other name
// before ":/" is the name of a folder.
constexpr std::array<std::string_view, 20> kKnownSchemes = {
    "s3",  "s3a",  "s3n",  "gs",    "gcs", "az",   "azure", "abfs", "abfss", "wasb",
    "adl", "hdfs", "http", "https", "ftp", "ftps", "sftp",  "file", "oss",   "dbfs"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_scheme_char(char c) {
  return is_letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// Returns the text before "://", or before ":/" if that text is a known scheme;
// otherwise an empty text. A single letter is not a scheme but a drive, as in
// "c:/runs".
std::string_view scheme_of(std::string_view text) {
  const size_t colon = text.find(":/");
  if (colon == text.npos || colon < 2 || !is_letter(text[0])) return {};
  const std::string_view scheme = text.substr(0, colon);
  if (!std::ranges::all_of(scheme, is_scheme_char)) return {};
  const bool is_known =
      std::ranges::find(kKnownSchemes, lower_case(scheme)) != kKnownSchemes.end();
  return is_known || text.substr(colon).starts_with("://") ? scheme
                                                           : std::string_view();
}

}  // namespace

bool is_object_path(const Path& path) {
  return scheme_of(path.native()) == kObjectScheme;
}

Result<void> check_scheme(const Path& place) {
  const std::string_view scheme = scheme_of(place.native());
  if (scheme.empty() || scheme == kObjectScheme) return {};
  const std::string lower = lower_case(scheme);
  if (lower == kObjectScheme) {
    return invalid("{}: scheme \"{}\"; expected s3://bucket/prefix, in lower case",
                   place.native(), scheme);
  }
  if (lower == "file") {
    return invalid("{}: scheme \"{}\"; expected the path alone", place.native(),
                   scheme);
  }
  return invalid("{}: unknown scheme \"{}\"; expected a folder or s3://bucket/prefix",
                 place.native(), scheme);
}

Result<void> check_place(const Path& place) {
  if (place.empty()) {
    return invalid(
        "\"\": the name of the place is empty; expected a folder or "
        "s3://bucket/prefix");
  }
  return check_scheme(place);
}

}  // namespace holdfast

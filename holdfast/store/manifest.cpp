#include "holdfast/store/manifest.h"

#include <unordered_set>

#include "holdfast/base/json.h"
#include "holdfast/base/json_append.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/json_digest_internal.h"

namespace holdfast {
namespace {

constexpr std::string_view kKind = "manifest";
// A manifest with the field "temporary" is of version 2, any other of version 1, so that
// older code reads it.
constexpr int64_t kVersion = 1, kVersionTemporary = 2;

template <typename Map, typename PutValue>
void put_map(std::string& out, const Map& map, PutValue put_value) {
  const char* before = "{";
  for (const auto& [key, value] : map) {
    out += before;
    put_text(out, key);
    out += ':';
    put_value(value);
    before = ",";
  }
  out += map.empty() ? "{}" : "}";
}

void put_files(std::string& out, const std::vector<ManifestFile>& files) {
  out += '[';
  for (const ManifestFile& file : files) {
    out += &file == files.data() ? "\n{\"name\":" : ",\n{\"name\":";
    put_text(out, file.name);
    put(out, ",\"bytes\":{},\"digest\":", file.bytes);
    put_text(out, file.digest);
    out += '}';
  }
  out += ']';
}

Result<double> read_metric(const Json& value, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return corrupt("{}: a metric is not a number; expected a number, nan, inf or -inf",
                 where);
}

class Reader {
 public:
  explicit Reader(Fields& fields) : fields_(fields) {}

  Result<Manifest> read() {
    const std::string kind = HOLDFAST_TRY(fields_.text("holdfast"));
    if (kind != kKind) {
      return corrupt("{}: is a \"{}\"; expected a \"{}\"", fields_.where(), kind,
                     kKind);
    }
    const int64_t version = HOLDFAST_TRY(fields_.integer("version"));
    if (version != kVersion && version != kVersionTemporary) {
      return unsupported("{}: version {}; expected {} or {}", fields_.where(), version,
                         kVersion, kVersionTemporary);
    }
    if (version == kVersionTemporary) {
      manifest_.temporary = HOLDFAST_TRY(fields_.boolean("temporary"));
    }
    HOLDFAST_TRY(read_header());
    HOLDFAST_TRY(read_software());
    HOLDFAST_TRY(read_metrics());
    HOLDFAST_TRY(read_files());
    HOLDFAST_TRY(fields_.done());
    return std::move(manifest_);
  }

 private:
  Result<void> read_header() {
    manifest_.step = HOLDFAST_TRY(fields_.integer("step"));
    manifest_.run = HOLDFAST_TRY(fields_.text("run"));
    manifest_.epoch = HOLDFAST_TRY(fields_.integer("epoch", 0, kMostCommits));
    manifest_.sequence = HOLDFAST_TRY(fields_.integer("sequence", 0, kMostCommits));
    const auto attempt = parse_hex64(HOLDFAST_TRY(fields_.text("attempt")));
    if (!attempt)
      return corrupt("{}.attempt: is other text; expected 16 hexadecimal digits",
                     fields_.where());
    manifest_.attempt = *attempt;
    constexpr int64_t kMostRanks = 1 << 24;
    manifest_.world =
        static_cast<int>(HOLDFAST_TRY(fields_.integer("world", 1, kMostRanks)));
    manifest_.parallel = HOLDFAST_TRY(fields_.text("parallel"));
    manifest_.parent = HOLDFAST_TRY(fields_.text("parent"));
    manifest_.created = WallTime(Duration(HOLDFAST_TRY(
        fields_.integer("created_ns", std::numeric_limits<int64_t>::min()))));
    return {};
  }

  Result<void> read_software() {
    const Json& software = *HOLDFAST_TRY(fields_.any("software"));
    if (!software.is_object())
      return corrupt(
          "{}.software: is not an object; expected one that maps names to versions",
          fields_.where());
    for (const auto& [name, version] : software.items()) {
      if (!version.is_string()) {
        return corrupt("{}.software.{}: is not a string; expected a version",
                       fields_.where(), name);
      }
      manifest_.software.emplace(name, version.get<std::string>());
    }
    return {};
  }

  Result<void> read_metrics() {
    const Json& metrics = *HOLDFAST_TRY(fields_.any("metrics"));
    if (!metrics.is_object())
      return corrupt(
          "{}.metrics: is not an object; expected one that maps names to numbers",
          fields_.where());
    for (const auto& [name, value] : metrics.items()) {
      manifest_.metrics.emplace(
          name, HOLDFAST_TRY(read_metric(value, fields_.where() + ".metrics." + name)));
    }
    return {};
  }

  Result<void> read_files() {
    const Json& list = *HOLDFAST_TRY(fields_.array("files"));
    std::unordered_set<std::string> names;
    for (size_t i = 0; i < list.size(); ++i) {
      ManifestFile file = HOLDFAST_TRY(
          read_file(list[i], fmt::format("{}: files[{}]", fields_.where(), i)));
      if (file.name == kManifestName) {
        return corrupt("{}: lists itself among the files; expected only the others",
                       fields_.where());
      }
      if (!names.insert(file.name).second) {
        return corrupt("{}: \"{}\" is listed twice; expected it once", fields_.where(),
                       file.name);
      }
      manifest_.files.push_back(std::move(file));
    }
    return {};
  }

  static Result<ManifestFile> read_file(const Json& json, const std::string& where) {
    Fields fields = HOLDFAST_TRY(Fields::of(json, where));
    ManifestFile file;
    file.name = HOLDFAST_TRY(fields.text("name"));
    file.bytes = HOLDFAST_TRY(fields.integer("bytes"));
    file.digest = HOLDFAST_TRY(fields.text("digest"));
    HOLDFAST_TRY(fields.done());
    HOLDFAST_TRY(check_file_name(file.name).within(where));
    HOLDFAST_TRY(parse_file_digest(file.digest).within(where));
    return file;
  }

  Fields& fields_;
  Manifest manifest_;
};

}  // namespace

std::string crc_digest(uint32_t crc) { return fmt::format("crc32c:{:08x}", crc); }

std::string xxh3_digest(ByteView bytes) {
  return fmt::format("xxh3:{}", xxh3_128(bytes).hex());
}

Result<DigestKind> parse_file_digest(std::string_view digest) {
  const size_t colon = std::min(digest.find(':'), digest.size());
  const std::string_view kind = digest.substr(0, colon);
  const size_t expected = kind == "crc32c" ? 8 : kind == "xxh3" ? 32 : 0;
  const std::string_view digits = digest.substr(std::min(colon + 1, digest.size()));
  if (expected == 0 || digits.size() != expected || !from_hex(digits).ok()) {
    return invalid(
        "unknown digest; expected crc32c: and 8 hexadecimal digits, or xxh3: and 32");
  }
  return expected == 8 ? DigestKind::kCrc32c : DigestKind::kXxh3;
}

Bytes encode_manifest(const Manifest& manifest) {
  std::string out;
  put(out, "{{\"holdfast\":\"{}\",\"version\":{},\"step\":{},\"run\":", kKind,
      manifest.temporary ? kVersionTemporary : kVersion, manifest.step);
  put_text(out, manifest.run);
  put(out,
      ",\n\"epoch\":{},\"sequence\":{},\"attempt\":\"{}\",\"world\":{},\"parallel\":",
      manifest.epoch, manifest.sequence, hex64(manifest.attempt), manifest.world);
  put_text(out, manifest.parallel);
  out += ",\"parent\":";
  put_text(out, manifest.parent);
  if (manifest.temporary) out += ",\"temporary\":true";
  put(out, ",\n\"created_ns\":{},\"software\":",
      manifest.created.time_since_epoch().count());
  put_map(out, manifest.software,
          [&](const std::string& text) { put_text(out, text); });
  out += ",\n\"metrics\":";
  put_map(out, manifest.metrics, [&](double value) { put_number(out, value); });
  out += ",\n\"files\":";
  put_files(out, manifest.files);
  put_digest(out);
  return copy_of(bytes_of(out));
}

Result<Manifest> decode_manifest(ByteView json, const std::string& where) {
  const std::string_view members = HOLDFAST_TRY(check_digest(text_of(json), where));
  const Result<Json> parsed = parse_json(std::string(members) + "}", where);
  if (!parsed.ok()) return parsed.error().as(ErrorCode::kCorrupt);
  Result<Manifest> manifest = [&]() -> Result<Manifest> {
    Fields fields = HOLDFAST_TRY(Fields::of(*parsed, where));
    return Reader(fields).read();
  }();
  if (manifest.ok() || manifest.error().code() == ErrorCode::kUnsupported) {
    return manifest;
  }
  return manifest.error().as(ErrorCode::kCorrupt);
}

}  // namespace holdfast

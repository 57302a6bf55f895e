// Encodes and decodes the two small JSON files of a run: the owner's claim and
// holdfast.json.
#include "holdfast/base/json.h"
#include "holdfast/base/json_append.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/json_digest_internal.h"
#include "holdfast/store/owner.h"
#include "holdfast/store/run_file_internal.h"

namespace holdfast {
namespace {

constexpr int64_t kOwnerVersion = 2;
// The first version of both documents that ends with a digest.
constexpr int64_t kFirstWithDigest = 2;

int64_t nanoseconds(WallTime time) { return time.time_since_epoch().count(); }

Result<WallTime> read_time(Fields& fields, const std::string& key) {
  return WallTime(
      Duration(HOLDFAST_TRY(fields.integer(key, std::numeric_limits<int64_t>::min()))));
}

Result<Identity> read_identity(Fields& fields) {
  Identity identity;
  identity.host = HOLDFAST_TRY(fields.text("host"));
  identity.boot = HOLDFAST_TRY(fields.text("boot"));
  identity.pid = HOLDFAST_TRY(fields.integer("pid"));
  identity.started = HOLDFAST_TRY(fields.integer("started"));
  identity.pid_space = HOLDFAST_TRY(fields.integer("pid_space"));
  identity.job = HOLDFAST_TRY(fields.text("job"));
  identity.restart = HOLDFAST_TRY(fields.integer("restart"));
  return identity;
}

Result<Fence> read_fence(const Json& list, const std::string& where) {
  Fence fence;
  for (const Json& entry : list) {
    if (!entry.is_array() || entry.size() != 2) {
      return corrupt(
          "{}.fence: an entry is not a pair; expected pairs of epoch and sequence",
          where);
    }
    fence.emplace(HOLDFAST_TRY(json_integer(entry[0], where + ".fence")),
                  HOLDFAST_TRY(json_integer(entry[1], where + ".fence")));
  }
  return fence;
}

// `checked` says that the document ends with its digest and that the digest is right.
Result<void> read_kind(Fields& fields, std::string_view kind, int64_t version,
                       bool checked) {
  const std::string seen = HOLDFAST_TRY(fields.text("holdfast"));
  if (seen != kind) {
    return corrupt("{}: is a \"{}\"; expected a \"{}\"", fields.where(), seen, kind);
  }
  const int64_t number = HOLDFAST_TRY(fields.integer("version", 1));
  if (number > version) {
    return unsupported(
        "{}: version {}; expected at most {}, because this Holdfast is older",
        fields.where(), number, version);
  }
  if (number < kFirstWithDigest || checked) return {};
  return corrupt("{}: does not end with its digest; expected one from version 2 on",
                 fields.where());
}

Result<OwnerRecord> read_record(Fields& fields, bool checked) {
  HOLDFAST_TRY(read_kind(fields, "owner", kOwnerVersion, checked));
  OwnerRecord record;
  record.who = HOLDFAST_TRY(read_identity(fields));
  record.epoch = HOLDFAST_TRY(fields.integer("epoch", 1, kMostCommits));
  record.since = HOLDFAST_TRY(read_time(fields, "since_ns"));
  // Version 1 does not have this field.
  record.renewed = fields.has("renewed_ns")
                       ? HOLDFAST_TRY(read_time(fields, "renewed_ns"))
                       : record.since;
  record.lease_until = HOLDFAST_TRY(read_time(fields, "lease_until_ns"));
  record.released = HOLDFAST_TRY(fields.boolean("released"));
  const auto token = parse_hex64(HOLDFAST_TRY(fields.text("token")));
  if (!token)
    return corrupt("{}.token: is not a token; expected 16 hexadecimal digits",
                   fields.where());
  record.token = *token;
  if (fields.has("fence")) {
    record.fence =
        HOLDFAST_TRY(read_fence(*HOLDFAST_TRY(fields.array("fence")), fields.where()));
  }
  HOLDFAST_TRY(fields.done());
  return record;
}

Result<RunFile> read_run(Fields& fields, bool checked) {
  HOLDFAST_TRY(read_kind(fields, "run", kRunVersion, checked));
  RunFile file{.id = HOLDFAST_TRY(fields.text("run")), .checked = checked};
  if (file.id.empty())
    return corrupt("{}.run: is empty; expected the id of the run", fields.where());
  HOLDFAST_TRY(fields.done());
  return file;
}

// Reads a document that this library wrote, so any defect in it means that it is
// damaged. From version 2 on the document ends with its digest.
template <typename Read>
auto read_document(ByteView json, const std::string& where, Read read)
    -> decltype(read(std::declval<Fields&>(), true)) {
  std::string text(text_of(json));
  const bool checked = ends_with_digest(text);
  if (checked) text = std::string(HOLDFAST_TRY(check_digest(text, where))) + "}";
  const Result<Json> parsed = parse_json(text, where);
  if (!parsed.ok()) return parsed.error().as(ErrorCode::kCorrupt);
  Result<Fields> fields = Fields::of(*parsed, where);
  if (!fields.ok()) return fields.error().as(ErrorCode::kCorrupt);
  auto result = read(*fields, checked);
  if (result.ok() || result.error().code() == ErrorCode::kUnsupported) return result;
  return result.error().as(ErrorCode::kCorrupt);
}

}  // namespace

Bytes encode_owner(const OwnerRecord& record) {
  std::string out;
  put(out, "{{\"holdfast\":\"owner\",\"version\":{},\"host\":", kOwnerVersion);
  put_text(out, record.who.host);
  out += ",\"boot\":";
  put_text(out, record.who.boot);
  put(out, ",\"pid\":{},\"started\":{},\"pid_space\":{},\"job\":", record.who.pid,
      record.who.started, record.who.pid_space);
  put_text(out, record.who.job);
  put(out, ",\"restart\":{},\n\"epoch\":{},\"token\":\"{}\",\"since_ns\":{}",
      record.who.restart, record.epoch, hex64(record.token), nanoseconds(record.since));
  put(out, ",\"renewed_ns\":{},\"lease_until_ns\":{},\"released\":{}",
      nanoseconds(record.renewed), nanoseconds(record.lease_until), record.released);
  if (record.fence) {
    const char* before = ",\n\"fence\":[";
    for (const auto& [epoch, sequence] : *record.fence) {
      put(out, "{}[{},{}]", before, epoch, sequence);
      before = ",";
    }
    out += record.fence->empty() ? ",\n\"fence\":[]" : "]";
  }
  put_digest(out);
  return copy_of(bytes_of(out));
}

Result<OwnerRecord> decode_owner(ByteView json, const std::string& where) {
  return read_document(json, where, read_record);
}

Bytes encode_run_file(const RunFile& file) {
  std::string out;
  put(out, "{{\"holdfast\":\"run\",\"version\":{},\"run\":", kRunVersion);
  put_text(out, file.id);
  put_digest(out);
  return copy_of(bytes_of(out));
}

Result<RunFile> decode_run_file(ByteView json, const std::string& where) {
  return read_document(json, where, read_run);
}

}  // namespace holdfast

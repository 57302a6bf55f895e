// Encodes and decodes the two small JSON files of a run: the owner's claim and
// holdfast.json.
#include "holdfast/shard/step_name.h"
#include "holdfast/base/json_digest.h"
#include "holdfast/store/owner.h"
#include "holdfast/store/run_file_internal.h"

namespace holdfast {
namespace {

constexpr int64_t kOwnerVersion = 2;
// The first version of both documents that ends with a digest.
constexpr int64_t kFirstWithDigest = 2;

// `checked` says that the document ends with its digest and that the digest is right.
template <typename T>
struct Versioned {
  T value{};
  int64_t version = kFirstWithDigest;
  bool checked = true;
};

template <typename T>
Bytes encode(const T& value) {
  return encode_with_digest(Versioned<T>{value});
}

template <typename T>
Result<Versioned<T>> decode(ByteView json, const std::string& where) {
  const bool checked = ends_with_digest(text_of(json));
  Versioned<T> read =
      checked ? HOLDFAST_TRY(decode_with_digest<Versioned<T>>(json, where))
              : HOLDFAST_TRY(from_json<Versioned<T>>(text_of(json), where,
                                                     ErrorCode::kCorrupt));
  read.checked = checked;
  if (checked || read.version < kFirstWithDigest) return read;
  return corrupt("{}: does not end with its digest; expected one from version 2 on",
                 where);
}

}  // namespace

void fields(Is<Versioned<OwnerRecord>> auto& self, auto&& field) {
  auto& record = self.value;
  field.kind("owner");
  field.version(self.version, kOwnerVersion);
  field("host", record.who.host);
  field("boot", record.who.boot);
  field("pid", record.who.pid);
  field("started", record.who.started);
  field("pid_space", record.who.pid_space);
  field("job", record.who.job);
  field("restart", record.who.restart);
  field.line();
  field.integer("epoch", record.epoch, 1, kMostCommits);
  field.text("token", record.token, hex64, parse_hex64, "16 hexadecimal digits");
  field("since_ns", record.since);
  // Version 1 does not have this field.
  if (field.kReads && !field.has("renewed_ns")) {
    field("since_ns", record.renewed);
  } else {
    field("renewed_ns", record.renewed);
  }
  field("lease_until_ns", record.lease_until);
  field("released", record.released);
  field.line();
  field.optional("fence", record.fence);
}

void fields(Is<Versioned<RunFile>> auto& self, auto&& field) {
  field.kind("run");
  field.version(self.version, kRunVersion);
  field("run", self.value.id);
  field.check([&]() -> Result<void> {
    if (!self.value.id.empty()) return {};
    return invalid("run: is empty; expected the id of the run");
  });
}

Bytes encode_owner(const OwnerRecord& record) { return encode(record); }

Result<OwnerRecord> decode_owner(ByteView json, const std::string& where) {
  return HOLDFAST_TRY(decode<OwnerRecord>(json, where)).value;
}

Bytes encode_run_file(const RunFile& file) { return encode(file); }

Result<RunFile> decode_run_file(ByteView json, const std::string& where) {
  auto read = HOLDFAST_TRY(decode<RunFile>(json, where));
  read.value.checked = read.checked;
  return std::move(read.value);
}

}  // namespace holdfast

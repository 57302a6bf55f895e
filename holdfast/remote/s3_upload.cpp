#include <fmt/format.h>

#include <algorithm>

#include "holdfast/base/number_text.h"
#include "holdfast/remote/s3_upload_internal.h"
#include "holdfast/remote/s3_xml_internal.h"

namespace holdfast {
namespace {

Result<void> check_room(const S3Client& client, const std::string& key, int64_t taken,
                        size_t more, int64_t want) {
  if (static_cast<int64_t>(more) <= want - taken) return {};
  return invalid("{}: {} bytes appended after {}; expected {} in all, as announced",
                 client.where(key), more, taken, want);
}

Result<void> check_complete(const S3Client& client, const std::string& key,
                            int64_t taken, int64_t want) {
  if (taken == want) return {};
  return invalid("{}: finished after {} bytes; expected {}, as announced",
                 client.where(key), taken, want);
}

}  // namespace

Result<int64_t> object_size(S3Client& client, const std::string& key) {
  const HttpAnswer answer = HOLDFAST_TRY(client.send({.method = "HEAD", .key = key}));
  const auto found = answer.headers.find("content-length");
  const auto size = count_in(found == answer.headers.end() ? "" : found->second);
  if (size) return *size;
  return unavailable("{}: answer without a size; expected one", client.where(key));
}

Result<void> abort_multipart(S3Client& client, const PendingUpload& upload,
                             int attempts) {
  const auto answer = client.send({.method = "DELETE",
                                   .key = upload.key,
                                   .query = {{"uploadId", upload.id}},
                                   .attempts = attempts});
  if (answer.ok() || answer.error().code() == ErrorCode::kNotFound) return {};
  return answer.error().within("abort an upload");
}

Result<void> SingleUpload::append(ByteView bytes) {
  HOLDFAST_TRY(check_room(client_, key_, size(), bytes.size(), want_));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return {};
}

Result<void> SingleUpload::finish() {
  HOLDFAST_TRY(check_complete(client_, key_, size(), want_));
  HOLDFAST_TRY(client_.send({.method = "PUT", .key = key_, .body = bytes_}));
  return {};
}

Result<void> SingleUpload::abort() {
  bytes_.clear();
  return {};
}

Result<std::unique_ptr<Upload>> MultipartUpload::begin(S3Client& client,
                                                       ThreadPool& pool,
                                                       const std::string& key,
                                                       int64_t size) {
  const HttpAnswer answer = HOLDFAST_TRY(
      client.send({.method = "POST", .key = key, .query = {{"uploads", ""}}}));
  const std::string where = client.where(key);
  const XmlElement root = HOLDFAST_TRY(parse_xml(answer.body, where));
  const std::string id = root.text_of("UploadId");
  if (id.empty() || id.size() > 2048) {
    return unavailable("{}: upload id of {} bytes; expected 1 to 2048", where,
                       id.size());
  }
  const PendingUpload upload{.key = key, .id = id, .started = {}};
  return std::unique_ptr<Upload>(new MultipartUpload(client, pool, upload, size));
}

MultipartUpload::MultipartUpload(S3Client& client, ThreadPool& pool,
                                 PendingUpload upload, int64_t size)
    : client_(client),
      pool_(pool),
      upload_(std::move(upload)),
      want_(size),
      part_bytes_(s3_part_bytes(size, client.options().part_bytes)) {}

MultipartUpload::~MultipartUpload() {
  stop_ = true;
  wait_for_parts();
  // Tries only once: a destructor must not wait through the pauses between attempts
  // when the server is dead.
  if (!over_) (void)abort_multipart(client_, upload_, 1);
}

Result<void> MultipartUpload::failure() {
  MutexLock lock(mutex_);
  return failure_;
}

void MultipartUpload::fail(Error error) {
  stop_ = true;
  MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = std::move(error);
}

Result<void> MultipartUpload::append(ByteView bytes) {
  HOLDFAST_TRY(check_room(client_, upload_.key, taken_, bytes.size(), want_));
  while (!bytes.empty()) {
    if (part_.empty()) HOLDFAST_TRY(begin_part());
    const size_t room = static_cast<size_t>(part_bytes_) - part_.size();
    const ByteView now = bytes.first(std::min(room, bytes.size()));
    part_.insert(part_.end(), now.begin(), now.end());
    bytes = bytes.subspan(now.size());
    taken_ += static_cast<int64_t>(now.size());
    if (now.size() == room) send_part();
  }
  return failure();
}

// Waits until fewer than parts_in_flight parts are in memory.
Result<void> MultipartUpload::begin_part() {
  {
    MutexLock lock(mutex_);
    const int most = client_.options().parts_in_flight;
    while (in_flight_ >= most && failure_.ok()) part_done_.wait(mutex_);
    HOLDFAST_TRY(failure_);
    ++in_flight_;
  }
  part_.reserve(static_cast<size_t>(std::min(part_bytes_, want_ - taken_)));
  return {};
}

void MultipartUpload::send_part() {
  const size_t number = parts_++;
  {
    MutexLock lock(mutex_);
    etags_.resize(parts_);
  }
  // A shared_ptr only because the pool's std::function must be copyable.
  auto part = std::make_shared<Bytes>(std::move(part_));
  part_ = Bytes();
  pool_.submit([this, number, part]() mutable {
    run_part(number, *part);
    part.reset();  // frees the memory before begin_part() admits another part
    MutexLock lock(mutex_);
    --in_flight_;
    part_done_.notify_all();
  });
}

void MultipartUpload::run_part(size_t number, const Bytes& part) {
  if (stop_) return;
  Result<std::string> etag = put_part(number, part);
  if (!etag.ok()) return fail(std::move(etag).error());
  MutexLock lock(mutex_);
  etags_[number] = *std::move(etag);
}

Result<std::string> MultipartUpload::put_part(size_t number, const Bytes& part) {
  const HttpAnswer answer =
      HOLDFAST_TRY(client_
                       .send({.method = "PUT",
                              .key = upload_.key,
                              .query = {{"partNumber", std::to_string(number + 1)},
                                        {"uploadId", upload_.id}},
                              .body = part,
                              .stop = &stop_})
                       .within(fmt::format("part {}", number + 1)));
  const auto found = answer.headers.find("etag");
  if (found == answer.headers.end() || found->second.size() > 256) {
    return unavailable("{}: no usable ETag for part {}; expected up to 256 bytes",
                       client_.where(upload_.key), number + 1);
  }
  return found->second;
}

void MultipartUpload::wait_for_parts() {
  if (!part_.empty()) {
    part_ = Bytes();
    MutexLock lock(mutex_);
    --in_flight_;
  }
  MutexLock lock(mutex_);
  while (in_flight_ > 0) part_done_.wait(mutex_);
}

Result<void> MultipartUpload::finish() {
  HOLDFAST_TRY(failure());
  HOLDFAST_TRY(check_complete(client_, upload_.key, taken_, want_));
  if (!part_.empty()) send_part();
  wait_for_parts();
  HOLDFAST_TRY(failure());
  HOLDFAST_TRY(complete());
  over_ = true;
  const int64_t size = HOLDFAST_TRY(object_size(client_, upload_.key));
  if (size == want_) return {};
  return unavailable("{}: the object has {} bytes after the upload; expected {}",
                     client_.where(upload_.key), size, want_);
}

Result<void> MultipartUpload::complete() {
  std::string body = "<CompleteMultipartUpload>";
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < etags_.size(); ++i) {
      body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>",
                          i + 1, escape_xml(etags_[i]));
    }
  }
  body += "</CompleteMultipartUpload>";
  const auto answer = client_.send({.method = "POST",
                                    .key = upload_.key,
                                    .query = {{"uploadId", upload_.id}},
                                    .body = bytes_of(body),
                                    .error_in_body = true});
  // If the server does not know the upload, then either an earlier attempt completed it
  // and its answer was lost, or somebody aborted it. finish() asks for the size of the
  // object next, and so finds out which.
  if (answer.ok() || answer.error().code() == ErrorCode::kNotFound) return {};
  return answer.error();
}

Result<void> MultipartUpload::abort() {
  stop_ = true;
  wait_for_parts();
  over_ = true;
  return abort_multipart(client_, upload_, client_.options().attempts);
}

}  // namespace holdfast

#include "holdfast/remote/s3_store.h"

#include <algorithm>

#include "holdfast/base/number_text.h"
#include "holdfast/remote/s3_client_internal.h"
#include "holdfast/remote/s3_upload_internal.h"
#include "holdfast/remote/s3_xml_internal.h"

namespace holdfast {
namespace {

constexpr int64_t kMaxPartBytes = int64_t{5} << 30;  // Amazon's limit
constexpr size_t kMaxListed = 10'000'000;

class S3Source : public Source {
 public:
  S3Source(S3Client& client, std::string key, int64_t size)
      : client_(client), key_(std::move(key)), name_(client.where(key_)), size_(size) {}

  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    if (into.empty()) return {};
    HOLDFAST_TRY(client_.send({.method = "GET",
                               .key = key_,
                               .into = into,
                               .offset = offset,
                               .total = size_}));
    return {};
  }

 private:
  S3Client& client_;
  const std::string key_;
  const std::string name_;
  const int64_t size_;
};

// Reads the pages of a listing, one after the other. Each of `markers` is a parameter
// of the next request and the element of the last page that has its value.
class Pages {
 public:
  using Markers = std::vector<std::pair<const char*, const char*>>;

  Pages(S3Client& client, QueryParameters query, Markers markers)
      : client_(client), query_(std::move(query)), markers_(std::move(markers)) {}

  bool more() const { return more_; }

  Result<XmlElement> next() {
    QueryParameters query = query_;
    query.insert(query.end(), from_.begin(), from_.end());
    const HttpAnswer answer = HOLDFAST_TRY(
        client_.send({.method = "GET", .key = "", .query = std::move(query)}));
    XmlElement page = HOLDFAST_TRY(parse_xml(answer.body, client_.name()));
    more_ = page.text_of("IsTruncated") == "true";
    QueryParameters from;
    for (const auto& [parameter, element] : markers_) {
      from.emplace_back(parameter, page.text_of(element));
    }
    // A server that names the same page again and again would keep us here forever.
    if (more_ && from == from_) {
      return unavailable("{}: the next page of a listing is the same; expected another",
                         client_.name());
    }
    empty_ = has_entries(page) ? 0 : empty_ + 1;
    if (more_ && empty_ > kMostEmpty) {
      return unavailable("{}: {} empty pages of a listing in a row; expected its end",
                         client_.name(), empty_);
    }
    from_ = std::move(from);
    return page;
  }

 private:
  static constexpr int kMostEmpty = 100;

  static bool has_entries(const XmlElement& page) {
    return page.find("Contents") != nullptr || page.find("Upload") != nullptr;
  }

  S3Client& client_;
  const QueryParameters query_;
  const Markers markers_;
  QueryParameters from_;
  bool more_ = true;
  int empty_ = 0;  // how many pages in a row had no entry
};

Result<ObjectInfo> object_of(const XmlElement& entry, const std::string& where) {
  const std::string text = entry.text_of("Size");
  const auto size = count_in(text);
  if (!size) {
    return unavailable("{}: size \"{}\" in a listing; expected a number", where,
                       text.substr(0, 64));
  }
  const WallTime modified =
      HOLDFAST_TRY(parse_xml_time(entry.text_of("LastModified"), where));
  return ObjectInfo{.key = entry.text_of("Key"), .size = *size, .modified = modified};
}

class S3Store : public ObjectStore {
 public:
  S3Store(Env& env, const S3Options& options, const S3Endpoint& endpoint)
      : client_(env, options, endpoint), pool_({.threads = options.parts_in_flight}) {}

  const std::string& name() const override { return client_.name(); }

  Result<void> put(const std::string& key, ByteView bytes) override {
    HOLDFAST_TRY(check_object_key(name(), key));
    HOLDFAST_TRY(client_.send({.method = "PUT", .key = key, .body = bytes}));
    return {};
  }

  Result<std::unique_ptr<Upload>> begin_upload(const std::string& key,
                                               int64_t size) override {
    HOLDFAST_TRY(check_object_key(name(), key));
    if (size < 0 || size > kMaxPartBytes * kMaxParts) {
      return invalid("{}: upload of {} bytes; expected 0 to {}", client_.where(key),
                     size, kMaxPartBytes * kMaxParts);
    }
    if (size <= client_.options().part_bytes) {
      return std::unique_ptr<Upload>(new SingleUpload(client_, key, size));
    }
    return MultipartUpload::begin(client_, pool_, key, size);
  }

  Result<Bytes> get(const std::string& key, int64_t limit) override {
    HOLDFAST_TRY(check_object_key(name(), key));
    const HttpAnswer answer =
        HOLDFAST_TRY(client_.send({.method = "GET", .key = key, .limit = limit}));
    return copy_of(bytes_of(answer.body));
  }

  Result<std::unique_ptr<Source>> open(const std::string& key) override {
    HOLDFAST_TRY(check_object_key(name(), key));
    const int64_t size = HOLDFAST_TRY(object_size(client_, key));
    return std::unique_ptr<Source>(new S3Source(client_, key, size));
  }

  Result<std::vector<ObjectInfo>> list(const std::string& prefix) override {
    Pages pages(client_, {{"list-type", "2"}, {"prefix", prefix}},
                {{"continuation-token", "NextContinuationToken"}});
    std::vector<ObjectInfo> objects;
    while (pages.more()) {
      const XmlElement page = HOLDFAST_TRY(pages.next());
      for (const XmlElement& entry : page.children) {
        if (entry.name != "Contents") continue;
        ObjectInfo object = HOLDFAST_TRY(object_of(entry, name()));
        if (object.key.starts_with(prefix)) objects.push_back(std::move(object));
      }
      if (objects.size() > kMaxListed) {
        return invalid("{}: more than {} objects under \"{}\"; expected fewer", name(),
                       kMaxListed, prefix);
      }
    }
    std::sort(objects.begin(), objects.end(),
              [](const ObjectInfo& a, const ObjectInfo& b) { return a.key < b.key; });
    return objects;
  }

  Result<void> remove(const std::string& key) override {
    HOLDFAST_TRY(check_object_key(name(), key));
    const auto answer = client_.send({.method = "DELETE", .key = key});
    if (answer.ok() || answer.error().code() == ErrorCode::kNotFound) return {};
    return answer.error();
  }

  Result<std::vector<PendingUpload>> list_uploads(const std::string& prefix) override {
    Pages pages(
        client_, {{"uploads", ""}, {"prefix", prefix}},
        {{"key-marker", "NextKeyMarker"}, {"upload-id-marker", "NextUploadIdMarker"}});
    std::vector<PendingUpload> uploads;
    while (pages.more() && uploads.size() < kMaxListed) {
      const XmlElement page = HOLDFAST_TRY(pages.next());
      for (const XmlElement& entry : page.children) {
        const std::string key = entry.text_of("Key");
        if (entry.name != "Upload" || !key.starts_with(prefix)) continue;
        const WallTime started =
            HOLDFAST_TRY(parse_xml_time(entry.text_of("Initiated"), name()));
        uploads.push_back(
            {.key = key, .id = entry.text_of("UploadId"), .started = started});
      }
    }
    return uploads;
  }

  Result<void> abort_upload(const PendingUpload& upload) override {
    HOLDFAST_TRY(check_object_key(name(), upload.key));
    return abort_multipart(client_, upload, client_.options().attempts);
  }

 private:
  S3Client client_;
  ThreadPool pool_;
};

}  // namespace

Result<std::unique_ptr<ObjectStore>> open_s3(Env& env, const S3Options& options) {
  HOLDFAST_TRY(check_options(options));
  const S3Endpoint endpoint = HOLDFAST_TRY(resolve_endpoint(options));
  return std::unique_ptr<ObjectStore>(new S3Store(env, options, endpoint));
}

}  // namespace holdfast

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "holdfast/remote/s3_http_internal.h"

namespace holdfast {
namespace {

constexpr size_t kMaxHeaders = 100;
constexpr size_t kMaxHeaderBytes = 8192;
constexpr long kBufferBytes = 256L << 10;

long milliseconds(Duration duration) {
  return static_cast<long>(
      std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

// The data that libcurl's callbacks share in one transfer.
struct Transfer {
  const HttpRequest& request;
  HttpAnswer& answer;
  CURL* curl = nullptr;
  size_t sent = 0;
  bool too_long = false;

  bool succeeded() const {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    return status >= 200 && status < 300;
  }
};

size_t send_body(char* into, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const ByteView rest = transfer.request.body.subspan(transfer.sent);
  const size_t bytes = std::min(size * count, rest.size());
  if (bytes > 0) std::memcpy(into, rest.data(), bytes);
  transfer.sent += bytes;
  return bytes;
}

// libcurl sends the body again from its start if the server has closed a connection
// that was kept open.
int rewind_body(void* user, curl_off_t offset, int origin) {
  auto& transfer = *static_cast<Transfer*>(user);
  if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_FAIL;
  if (static_cast<size_t>(offset) > transfer.request.body.size()) {
    return CURL_SEEKFUNC_FAIL;
  }
  transfer.sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

bool take_into(Transfer& transfer, const char* data, size_t bytes) {
  HttpAnswer& answer = transfer.answer;
  const ByteSpan rest = transfer.request.into.subspan(answer.received);
  if (bytes > rest.size()) return false;
  std::memcpy(rest.data(), data, bytes);
  answer.received += bytes;
  return true;
}

bool take_body(Transfer& transfer, const char* data, size_t bytes) {
  std::string& body = transfer.answer.body;
  // The body of an error is always read, up to 64 KiB, even if the request has limit 0.
  const auto limit = static_cast<size_t>(transfer.succeeded() ? transfer.request.limit
                                                              : int64_t{1} << 16);
  if (bytes > limit - std::min(limit, body.size())) return false;
  body.append(data, bytes);
  return true;
}

size_t receive_body(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const size_t bytes = size * count;
  const bool direct = !transfer.request.into.empty() && transfer.succeeded();
  const bool taken =
      direct ? take_into(transfer, data, bytes) : take_body(transfer, data, bytes);
  if (taken) return bytes;
  transfer.too_long = true;
  return 0;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return result;
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

size_t receive_header(char* data, size_t size, size_t count, void* user) {
  auto& headers = static_cast<Transfer*>(user)->answer.headers;
  const std::string_view line(data, size * count);
  // A new answer begins, for example after "100 Continue": only the last one counts.
  if (line.starts_with("HTTP/")) headers.clear();
  const size_t colon = line.find(':');
  const bool wanted = colon != line.npos && line.size() <= kMaxHeaderBytes;
  if (wanted && headers.size() < kMaxHeaders) {
    headers[lower(trim(line.substr(0, colon)))] = trim(line.substr(colon + 1));
  }
  return line.size();
}

struct HeaderList {
  curl_slist* list = nullptr;

  HeaderList() = default;
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;
  ~HeaderList() { curl_slist_free_all(list); }

  void add(const std::string& line) {
    curl_slist* longer = curl_slist_append(list, line.c_str());
    HOLDFAST_CHECK(longer != nullptr, "no memory for a header");
    list = longer;
  }
};

ErrorCode code_of(CURLcode outcome, const Transfer& transfer) {
  if (transfer.too_long) return ErrorCode::kInvalid;
  switch (outcome) {
    case CURLE_OPERATION_TIMEDOUT: return ErrorCode::kTimeout;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_URL_MALFORMAT: return ErrorCode::kInvalid;
    default: return ErrorCode::kUnavailable;
  }
}

}  // namespace

class Http::Handle {
 public:
  Handle() : curl_(curl_easy_init()) {
    HOLDFAST_CHECK(curl_ != nullptr, "no memory for a connection");
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { curl_easy_cleanup(curl_); }

  HttpAnswer send(const HttpRequest& request, const S3Options& options,
                  const std::string& where) {
    curl_easy_reset(curl_);  // resets options, but keeps connections open
    HttpAnswer answer;
    Transfer transfer{.request = request, .answer = answer, .curl = curl_};
    HeaderList headers;
    for (const auto& [name, value] : request.headers) {
      headers.add(fmt::format("{}: {}", name, value));
    }
    // A header without a value removes the one that libcurl would add. With "Expect",
    // libcurl waits a second for servers that ignore it; its "Content-Type" for POST is
    // wrong here.
    headers.add("Expect:");
    headers.add("Content-Type:");
    set(CURLOPT_HTTPHEADER, headers.list);
    set(CURLOPT_URL, request.url.c_str());
    set_limits(options);
    set_callbacks(transfer);
    set_method(request);
    char reason[CURL_ERROR_SIZE] = "";
    set(CURLOPT_ERRORBUFFER, reason);
    finish(curl_easy_perform(curl_), transfer, reason, where);
    set(CURLOPT_ERRORBUFFER, nullptr);
    return answer;
  }

 private:
  template <typename T>
  void set(CURLoption option, T value) {
    const CURLcode outcome = curl_easy_setopt(curl_, option, value);
    HOLDFAST_CHECK(outcome == CURLE_OK, "libcurl option {}: {}",
                   static_cast<int>(option), curl_easy_strerror(outcome));
  }

  void set_limits(const S3Options& options) {
    // libcurl must not use signals for its timeouts: there are other threads.
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PATH_AS_IS, 1L);
    set(CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    set(CURLOPT_BUFFERSIZE, kBufferBytes);
    set(CURLOPT_CONNECTTIMEOUT_MS, milliseconds(options.connect_timeout));
    set(CURLOPT_TIMEOUT_MS, milliseconds(options.request_timeout));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, (milliseconds(options.stall_timeout) + 999) / 1000);
    if (!options.ca_file.empty()) set(CURLOPT_CAINFO, options.ca_file.c_str());
  }

  void set_callbacks(Transfer& transfer) {
    set(CURLOPT_WRITEFUNCTION, &receive_body);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
    set(CURLOPT_HEADERFUNCTION, &receive_header);
    set(CURLOPT_HEADERDATA, static_cast<void*>(&transfer));
    set(CURLOPT_READFUNCTION, &send_body);
    set(CURLOPT_READDATA, static_cast<void*>(&transfer));
    set(CURLOPT_SEEKFUNCTION, &rewind_body);
    set(CURLOPT_SEEKDATA, static_cast<void*>(&transfer));
  }

  void set_method(const HttpRequest& request) {
    const auto bytes = static_cast<curl_off_t>(request.body.size());
    if (request.method == "PUT") {
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_INFILESIZE_LARGE, bytes);
    } else if (request.method == "POST") {
      set(CURLOPT_POST, 1L);
      set(CURLOPT_POSTFIELDSIZE_LARGE, bytes);
    } else if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else if (request.method != "GET") {
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
  }

  void finish(CURLcode outcome, const Transfer& transfer, const char* reason,
              const std::string& where) {
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    transfer.answer.status = static_cast<int>(status);
    if (outcome == CURLE_OK) return;
    const std::string why = transfer.too_long ? "the answer is longer than its limit"
                            : reason[0] != 0  ? reason
                                              : curl_easy_strerror(outcome);
    transfer.answer.broken = Error(code_of(outcome, transfer), where + ": " + why);
  }

  CURL* const curl_;
};

Http::Http(const S3Options& options) : options_(options) {
  // Done once in a process and never undone, because other code may use libcurl too.
  static const CURLcode kOutcome = curl_global_init(CURL_GLOBAL_DEFAULT);
  HOLDFAST_CHECK(kOutcome == CURLE_OK, "libcurl: {}", curl_easy_strerror(kOutcome));
}

Http::~Http() = default;

std::unique_ptr<Http::Handle> Http::take_handle() {
  MutexLock lock(mutex_);
  if (const int here = ::getpid(); std::exchange(process_, here) != here) {
    // These connections are used by the process that this one was forked from. To close
    // them properly would end them there.
    for (std::unique_ptr<Handle>& handle : idle_) static_cast<void>(handle.release());
    idle_.clear();
  }
  if (idle_.empty()) return std::make_unique<Handle>();
  auto handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

void Http::give_back(std::unique_ptr<Handle> handle) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(handle));
}

HttpAnswer Http::send(const HttpRequest& request, const std::string& where) {
  std::unique_ptr<Handle> handle = take_handle();
  HttpAnswer answer = handle->send(request, options_, where);
  // A handle whose transfer broke is not used again: the rest of the old answer may
  // still arrive on its connection.
  if (!answer.broken.has_value()) give_back(std::move(handle));
  return answer;
}

}  // namespace holdfast

// Servers for the tests of object stores, on loopback: a real one in a process of its
// own, and one that sends the answers that the test gives it. Only for *_test.cpp.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/base/testing.h"
#include "holdfast/remote/s3_store.h"

namespace holdfast {

inline S3Options options_for(const std::string& endpoint) {
  // The machine may have a proxy, which could not reach our server.
  ::setenv("no_proxy", "127.0.0.1", 1);
  S3Options options;
  options.bucket = "bucket";
  options.endpoint = endpoint;
  options.credentials = {
      .access_key = "accesskey", .secret_key = "secretkey", .session_token = ""};
  return options;
}

// A self-signed certificate for 127.0.0.1, valid until 2126. Only for tests, because
// its secret key is public.
inline constexpr const char* kLoopbackCertificate = R"(-----BEGIN CERTIFICATE-----
MIIBmDCCAT6gAwIBAgIUYz0Qre+NjnA48ylTAVbA2AxZo3owCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNaG9sZGZhc3QgdGVzdDAgFw0yNjExMTUwODA1NDdaGA8yMTI2
MTAyMjA4MDU0N1owGDEWMBQGA1UEAwwNaG9sZGZhc3QgdGVzdDBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABITcRpX1AEcovTYPxMscObIenQvciOYLHc/pw11IEpBv
AT5dF6EYMDXopIoZdl+KhUf8WwM1WeIOIfo8f7PDg/KjZDBiMB0GA1UdDgQWBBRW
p7KLdsEyICvs5IUo9/BGBFDDxzAfBgNVHSMEGDAWgBRWp7KLdsEyICvs5IUo9/BG
BFDDxzAPBgNVHRMBAf8EBTADAQH/MA8GA1UdEQQIMAaHBH8AAAEwCgYIKoZIzj0E
AwIDSAAwRQIgdIuvnfF0zDkkN3kMYpyFwJ1DqXc7ft8DWF80txnhaSYCIQCffhcf
sdfQcN4wxKSAg4uDwrKW1eAEAVTPUmqOSBm2lA==
-----END CERTIFICATE-----
)";
inline constexpr const char* kLoopbackKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgh57hv2EWGX/crolw
sBCY1nW85iCnveONVbaIfQ23BTihRANCAASE3EaV9QBHKL02D8TLHDmyHp0L3Ijm
Cx3P6cNdSBKQbwE+XRehGDA16KSKGXZfioVH/FsDNVniDiH6PH+zw4Py
-----END PRIVATE KEY-----
)";

// `rclone serve s3`, which checks signatures and keeps the bucket in a folder. It dies
// with this process.
class RcloneServer {
 public:
  // The rclone that HOLDFAST_RCLONE names, or the one that the build found; empty if
  // there is none.
  static std::string program() {
    const char* named = std::getenv("HOLDFAST_RCLONE");
    return named != nullptr ? named : HOLDFAST_RCLONE;
  }

  explicit RcloneServer(bool tls = false) : tls_(tls) {
    std::filesystem::create_directories(folder_.path() / "root/bucket");
    std::ofstream(certificate()) << kLoopbackCertificate;
    std::ofstream(folder_.path() / "key.pem") << kLoopbackKey;
    start("127.0.0.1:0");
  }
  ~RcloneServer() { kill(); }
  RcloneServer(const RcloneServer&) = delete;
  RcloneServer& operator=(const RcloneServer&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  std::string certificate() const { return folder_.path() / "certificate.pem"; }

  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
    drain_ = std::jthread();
  }
  // Starts the server again on the same port, with the same objects.
  void restart() {
    kill();
    start(endpoint_.substr(endpoint_.find("//") + 2));
  }

 private:
  std::vector<std::string> command(const std::string& address) const {
    std::vector<std::string> words = {program(),  "serve",      "s3",
                                      "--config", "",           "--addr",
                                      address,    "--auth-key", "accesskey,secretkey"};
    if (tls_) {
      for (const std::string& word :
           {std::string("--cert"), certificate(), std::string("--key"),
            std::string(folder_.path() / "key.pem")}) {
        words.push_back(word);
      }
    }
    words.push_back(folder_.path() / "root");
    return words;
  }

  void start(const std::string& address) {
    int pipe[2];
    HOLDFAST_CHECK(::pipe(pipe) == 0, "no pipe");
    std::vector<std::string> words = command(address);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(pipe[1], STDERR_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(pipe[1]);
    wait_for_start(pipe[0]);
    // The server writes to the pipe and would stop if it were full, so a thread reads
    // it.
    drain_ = std::jthread([from = pipe[0]] {
      char buffer[4096];
      while (::read(from, buffer, sizeof buffer) > 0) continue;
      ::close(from);
    });
  }

  // Reads until the server writes "server on [http://127.0.0.1:45969/]": then it
  // listens.
  void wait_for_start(int from) {
    std::string said;
    char byte = 0;
    while (said.find("/]\n") == said.npos) {
      HOLDFAST_CHECK(::read(from, &byte, 1) == 1, "{}: did not start: {}", program(),
                     said);
      said += byte;
    }
    const size_t begin = said.find("[http") + 1;
    endpoint_ = said.substr(begin, said.find("/]\n") - begin);
  }

  const bool tls_;
  TempFolder folder_;
  std::string endpoint_;
  pid_t child_ = -1;
  std::jthread drain_;
};

// Takes one request on each connection and sends the next of its answers; the last
// answer is repeated.
class ScriptedServer {
 public:
  // Stands for an answer that never comes.
  static constexpr const char* kSilence = "";

  explicit ScriptedServer(std::vector<std::string> answers)
      : answers_(std::move(answers)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    HOLDFAST_CHECK(::bind(listener_, generic, size) == 0, "cannot bind");
    HOLDFAST_CHECK(::listen(listener_, 16) == 0, "cannot listen");
    HOLDFAST_CHECK(::getsockname(listener_, generic, &size) == 0, "no name");
    endpoint_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::jthread([this] { serve(); });
  }
  ~ScriptedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      if (connection_ >= 0) ::shutdown(connection_, SHUT_RDWR);
    }
    thread_ = std::jthread();
    ::close(listener_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  static std::string answer(const std::string& status, const std::string& body,
                            const std::string& headers = "") {
    return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n" + headers + "Connection: close\r\n\r\n" + body;
  }

  const std::string& endpoint() const { return endpoint_; }
  // The requests that came, with head and body, in order.
  std::vector<std::string> requests() const {
    MutexLock lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    size_t next = 0;
    while (true) {
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      {
        MutexLock lock(mutex_);
        connection_ = connection;
        if (stopping_) ::shutdown(connection, SHUT_RDWR);
      }
      const std::string request = receive(connection);
      if (!request.empty()) {
        {
          MutexLock lock(mutex_);
          requests_.push_back(request);
        }
        reply(connection, answers_[std::min(next++, answers_.size() - 1)]);
      }
      MutexLock lock(mutex_);
      connection_ = -1;
      ::close(connection);
    }
  }

  static std::string receive(int connection) {
    std::string text;
    size_t want = std::string::npos;
    char buffer[65536];
    while (text.size() < want) {
      const ssize_t count = ::recv(connection, buffer, sizeof buffer, 0);
      if (count <= 0) return "";
      text.append(buffer, static_cast<size_t>(count));
      const size_t end = text.find("\r\n\r\n");
      if (end == text.npos) continue;
      const size_t length = text.find("Content-Length: ");
      want = end + 4;
      if (length < end) want += std::stoul(text.substr(length + 16));
    }
    return text;
  }

  static void reply(int connection, const std::string& text) {
    if (text == kSilence) {
      char byte = 0;
      while (::recv(connection, &byte, 1, 0) > 0) continue;
      return;
    }
    (void)!::send(connection, text.data(), text.size(), MSG_NOSIGNAL);
    ::shutdown(connection, SHUT_WR);
  }

  const std::vector<std::string> answers_;
  const int listener_;
  std::string endpoint_;
  mutable Mutex mutex_;
  int connection_ HOLDFAST_GUARDED_BY(mutex_) = -1;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::vector<std::string> requests_ HOLDFAST_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace holdfast

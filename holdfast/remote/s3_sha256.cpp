#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "holdfast/remote/s3_sha256_internal.h"

namespace holdfast {
namespace {

// OpenSSL's functions take unsigned char where this code has std::byte.
const unsigned char* data_of(ByteView bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* data_of(Sha256& digest) {
  return reinterpret_cast<unsigned char*>(digest.data());
}

Error refused(const char* what) {
  return unsupported("OpenSSL: no {}; expected a configuration that provides it", what);
}

}  // namespace

Result<Sha256> sha256(ByteView bytes) {
  Sha256 digest;
  const int done = EVP_Digest(bytes.data(), bytes.size(), data_of(digest), nullptr,
                              EVP_sha256(), nullptr);
  if (done != 1) return refused("SHA-256");
  return digest;
}

Result<Sha256> hmac_sha256(ByteView key, ByteView message) {
  Sha256 digest;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data_of(message),
           message.size(), data_of(digest), nullptr);
  if (done == nullptr) return refused("HMAC with SHA-256");
  return digest;
}

}  // namespace holdfast

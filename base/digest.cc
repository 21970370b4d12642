#include "base/digest.h"

#include <openssl/evp.h>
#include <sys/random.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera {

std::string Sha256Of(absl::string_view bytes) {
  // Looking it up in OpenSSL's tables costs more than the digest of a small row.
  static EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  std::string digest(kSha256Bytes, '\0');
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, kAlgorithm, nullptr);
  return digest;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  if (getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) std::abort();  // not below 256 bytes
  return bytes;
}

std::string RandomId(absl::string_view prefix) { return absl::StrCat(prefix, absl::BytesToHexString(RandomBytes(16))); }

}  // namespace tessera

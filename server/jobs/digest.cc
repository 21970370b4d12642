#include "server/jobs/digest.h"

#include <openssl/evp.h>
#include <sys/random.h>

#include "absl/strings/escaping.h"

namespace tessera {

std::string Sha256(absl::string_view bytes) {
  // Looking it up in OpenSSL's tables costs more than the digest of a small row.
  static EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  std::string digest(32, '\0');
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, kAlgorithm, nullptr);
  return digest;
}

absl::StatusOr<std::string> RandomToken() {
  std::string bytes(16, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::UnavailableError("the system gives no random numbers");
  }
  return HexText(bytes);
}

std::string HexText(absl::string_view bytes) { return absl::BytesToHexString(bytes); }

}  // namespace tessera

#include "base/files/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"

namespace tessera::base {

bool IsSha256Text(absl::string_view text) {
  return text.size() == 2 * kSha256Bytes &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string Sha256Of(absl::string_view bytes) {
  // Looking up the algorithm in OpenSSL's tables costs more than the digest of a small row.
  static EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  // Creating a context for each digest would, too.
  static thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                                            EVP_MD_CTX_free);
  std::string digest(kSha256Bytes, '\0');
  EVP_DigestInit_ex2(context.get(), kAlgorithm, nullptr);
  EVP_DigestUpdate(context.get(), bytes.data(), bytes.size());
  EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return digest;
}

std::string HmacSha256Of(absl::string_view key, absl::string_view bytes) {
  std::string code(kSha256Bytes, '\0');
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(bytes.data()),
       bytes.size(), reinterpret_cast<unsigned char*>(code.data()), &size);
  return code;
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

void Sha256::Update(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }

void Sha256::UpdatePart(std::string_view bytes) {
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{bytes.size()} >> (8 * i));
  Update({length, sizeof(length)});
  Update(bytes);
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_DigestFinal_ex(context_.get(), digest, &length);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), length});
}

}  // namespace tessera::base

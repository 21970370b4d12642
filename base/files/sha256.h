// SHA-256.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;

namespace tessera::base {

// Size of a binary digest.
inline constexpr size_t kSha256Bytes = 32;

// Whether the text is a digest as 64 hexadecimal digits in lower case, which no path and no option is.
bool IsSha256Text(absl::string_view text);

// Returns the binary digest of one byte string.
std::string Sha256Of(absl::string_view bytes);

// Returns the binary HMAC-SHA-256 of `bytes` (RFC 2104).
std::string HmacSha256Of(absl::string_view key, absl::string_view bytes);

// Computes the digest of a sequence of byte strings.
class Sha256 {
 public:
  Sha256();

  void Update(std::string_view bytes);
  // Adds the length before the bytes, so that different sequences of parts have different digests.
  void UpdatePart(std::string_view bytes);
  std::string Finish();  // 64 hexadecimal digits; nothing may be added afterwards

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace tessera::base

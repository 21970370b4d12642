// SHA-256 of a sequence of byte strings.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace tessera {

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

}  // namespace tessera

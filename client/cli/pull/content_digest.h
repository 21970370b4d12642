// ContentDigest checks the bytes of a file against the digest that the hub lists for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/cli/pull/hub_listing.h"

struct evp_md_ctx_st;

namespace tessera::client {

// Used by one thread at a time.
class ContentDigest {
 public:
  explicit ContentDigest(const HubFile& file);

  void Update(std::string_view bytes);  // in the order of the file

  // DATA_LOSS if the size or the digest differs. Nothing may be added afterwards. A file without a listed digest is
  // only checked by its size.
  absl::Status Check();

  uint64_t size() const { return size_; }            // bytes so far
  const std::string& name() const { return name_; }  // after Check: the digest, which names the file's blob

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };

  HubFile file_;
  std::unique_ptr<evp_md_ctx_st, Free> context_;
  uint64_t size_ = 0;
  std::string name_;
};

}  // namespace tessera::client

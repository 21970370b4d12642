#include "client/cli/pull/content_digest.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/text/nearest_name.h"

namespace tessera::client {

void ContentDigest::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

ContentDigest::ContentDigest(const HubFile& file) : file_(file), context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(context_.get(), file.git_sha1.empty() ? EVP_sha256() : EVP_sha1(), nullptr);
  if (file.git_sha1.empty()) return;
  const std::string head = absl::StrCat("blob ", file.size);  // as git hashes a blob, with the NUL at its end
  EVP_DigestUpdate(context_.get(), head.c_str(), head.size() + 1);
}

void ContentDigest::Update(std::string_view bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  size_ += bytes.size();
}

absl::Status ContentDigest::Check() {
  if (size_ != file_.size) {
    return absl::DataLossError(
        absl::StrCat("the file ", base::QuotedValue(file_.path), " has ", size_, " bytes and must have ", file_.size));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_DigestFinal_ex(context_.get(), digest, &length);
  name_ = absl::BytesToHexString({reinterpret_cast<const char*>(digest), length});
  const std::string& wanted = file_.git_sha1.empty() ? file_.sha256 : file_.git_sha1;
  if (wanted.empty() || wanted == name_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the file ", base::QuotedValue(file_.path), " has the ",
                                          file_.git_sha1.empty() ? "SHA-256 " : "git SHA-1 ", name_, " and must have ",
                                          wanted, "; the endpoint or a proxy on the way returns other bytes"));
}

}  // namespace tessera::client

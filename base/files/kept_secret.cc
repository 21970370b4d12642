#include "base/files/kept_secret.h"

#include <optional>

#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/private_files.h"
#include "base/text/random_bytes.h"

namespace tessera::base {
namespace {

std::optional<std::string> ReadSecret(const std::string& path) {
  std::optional<std::string> secret = ReadSmallFile(path, kSecretBytes);
  return secret.has_value() && secret->size() == kSecretBytes ? secret : std::nullopt;
}

}  // namespace

std::string KeptSecret(const std::string& path) {
  if (std::optional<std::string> secret = ReadSecret(path)) return *secret;
  const std::string made = RandomBytes(kSecretBytes);
  // Another process may make it at the same time.
  if (MakePrivateFolder(path.substr(0, path.rfind('/'))).ok()) {
    (void)WriteFileAtomically(path, made, {.overwrite = false, .owner_only = true});
  }
  return ReadSecret(path).value_or(made);
}

}  // namespace tessera::base

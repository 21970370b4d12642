// ApiKeys holds the API keys: a file of salted hashes that is read again when it changes. Thread-safe.
//
// The file has one key per line: a name, the hash, and optional limits (KeyLimits) and share; "#" begins a comment.
//
//     render-farm sha256:SALT:HASH requests_per_minute=60 queued_jobs=20 queued_device_seconds=600 share=3
//
// NewApiKey makes keys of 256 random bits, so one round of SHA-256 is as good as many, and a wrong key costs no more
// time than a right one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files/file_identity.h"
#include "server/api/caller.h"

namespace tessera::server {

struct ApiKey {
  std::string name;  // 1 to 64 characters of A-Z a-z 0-9 . _ -
  std::string salt;  // bytes
  std::string hash;  // bytes
  KeyLimits limits;
  double share = 1;  // weight of the key's work while several keys have work, kLeastShare to kMostShare
};

inline constexpr double kLeastShare = 0.01, kMostShare = 100;

// Parses the keys in a file's text. INVALID_ARGUMENT with the line and what is wrong with it.
absl::StatusOr<std::vector<ApiKey>> ParseApiKeys(absl::string_view text);

struct NewKey {
  std::string secret;  // sent by the caller; not stored anywhere
  std::string line;    // for the file
};
// INVALID_ARGUMENT for an invalid name.
absl::StatusOr<NewKey> NewApiKey(const std::string& name, const KeyLimits& limits = {}, double share = 1);

// Reads one limit or the share in the form of the file, "queued_jobs=20". INVALID_ARGUMENT with the valid values.
absl::Status ReadKeyTerm(const std::string& word, ApiKey& key);

class ApiKeys {
 public:
  using Shares = std::map<std::string, double>;  // by the name of the key

  // `report` is called on every reload and every failed one; after a failure the current keys stay. `use_shares` gets
  // the shares of all keys before Load returns and after each reload; it must not call this object.
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Load(const std::string& path,
                                                       std::function<void(const absl::Status&)> report,
                                                       std::function<void(const Shares&)> use_shares = nullptr);

  // Returns the key of `secret`, without its salt and hash. Takes the same time whether there is one or not.
  std::optional<ApiKey> Find(absl::string_view secret);

 private:
  ApiKeys(std::string path, std::function<void(const absl::Status&)> report,
          std::function<void(const Shares&)> use_shares);

  absl::Status Read();

  const std::string path_;
  const std::function<void(const absl::Status&)> report_;
  const std::function<void(const Shares&)> use_shares_;
  std::mutex mutex_;
  base::FileIdentity seen_;
  std::vector<ApiKey> keys_;
};

}  // namespace tessera::server

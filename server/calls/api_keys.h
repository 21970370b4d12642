// API keys: a file of salted hashes, read again when it changes. Thread-safe.
//
// One key a line: a name, the hash, and its limits (KeyLimits) and share where it has some; "#" begins a comment.
//
//     render-farm sha256:SALT:HASH requests_per_minute=60 queued_jobs=20 queued_device_seconds=600 share=3
//
// Keys are made by NewApiKey and carry 256 random bits, so one round of SHA-256 is as good as many, and a caller with
// a wrong key costs no more than one with a right one.
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
#include "base/file_identity.h"
#include "server/api/job.h"

namespace tessera::server {

struct ApiKey {
  std::string name;  // 1 to 64 of A-Z a-z 0-9 . _ -
  std::string salt;  // bytes
  std::string hash;  // bytes
  KeyLimits limits;
  double share = 1;  // of the work while several keys want some, kLeastShare to kMostShare
};

inline constexpr double kLeastShare = 0.01, kMostShare = 100;

// The keys of a file's text. INVALID_ARGUMENT names the line and what is wrong with it.
absl::StatusOr<std::vector<ApiKey>> ParseApiKeys(absl::string_view text);

struct NewKey {
  std::string secret;  // what the caller sends; kept nowhere
  std::string line;    // for the file
};
// INVALID_ARGUMENT for a name that is not valid.
absl::StatusOr<NewKey> NewApiKey(const std::string& name, const KeyLimits& limits = {}, double share = 1);

// Reads one limit or the share as it stands in the file, "queued_jobs=20". INVALID_ARGUMENT says what is valid.
absl::Status ReadKeyTerm(const std::string& word, ApiKey& key);

class ApiKeys {
 public:
  using Shares = std::map<std::string, double>;  // by the name of the key

  // `report` hears of every reload and of every failed one, after which the keys in use stay. `use_shares` is given the
  // shares of all keys before Load returns and whenever they were read again; it must not call this.
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Load(const std::string& path,
                                                       std::function<void(const absl::Status&)> report,
                                                       std::function<void(const Shares&)> use_shares = nullptr);

  // The key that `secret` is, without its salt and hash. Takes the same time whether there is one or not.
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

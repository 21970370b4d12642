#include "server/calls/api_keys.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "server/api/generation_request.h"

namespace tessera::server {
namespace {

constexpr size_t kSaltBytes = 16;
constexpr size_t kSecretBytes = 32;
constexpr size_t kMaxFileBytes = 4 << 20;
constexpr size_t kMaxNameBytes = 64;

std::string HashOf(absl::string_view salt, absl::string_view secret) {
  return base::Sha256Of(absl::StrCat(salt, secret));
}

bool IsHex(absl::string_view text, size_t bytes) {
  return text.size() == 2 * bytes && std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
}

absl::Status CheckKeyName(const std::string& name) {
  const bool valid = !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (valid && name != "anonymous") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the name ", QuotedValue(name),
                                                 " of a key is not valid; valid values are 1 to ", kMaxNameBytes,
                                                 " of A-Z a-z 0-9 . _ - other than 'anonymous'"));
}

absl::StatusOr<ApiKey> ParseLine(const std::vector<std::string>& words) {
  ApiKey key;
  key.name = words[0];
  absl::Status status = CheckKeyName(key.name);
  if (!status.ok()) return status;
  const std::vector<std::string> parts = absl::StrSplit(words.size() > 1 ? words[1] : "", ':');
  if (parts.size() != 3 || parts[0] != "sha256" || !IsHex(parts[1], kSaltBytes) ||
      !IsHex(parts[2], base::kSha256Bytes)) {
    return absl::InvalidArgumentError(
        "the name of a key must be followed by its hash, sha256:SALT:HASH with 32 and 64 hexadecimal digits");
  }
  key.salt = absl::HexStringToBytes(parts[1]);
  key.hash = absl::HexStringToBytes(parts[2]);
  for (size_t i = 2; i < words.size(); ++i) {
    status = ReadKeyTerm(words[i], key);
    if (!status.ok()) return status;
  }
  return key;
}

// Formats with as few digits as necessary.
std::string NumberText(double number) {
  char digits[32];
  const std::to_chars_result end = std::to_chars(digits, digits + sizeof(digits), number);
  return std::string(digits, end.ptr);
}

// Returns words that ReadKeyTerm reads back as the same values, each after a blank.
std::string TermWords(const KeyLimits& limits, double share) {
  std::string words;
  if (limits.requests_per_minute != 0) absl::StrAppend(&words, " requests_per_minute=", limits.requests_per_minute);
  if (limits.queued_jobs != 0) absl::StrAppend(&words, " queued_jobs=", limits.queued_jobs);
  if (limits.queued_device_seconds != 0) {
    absl::StrAppend(&words, " queued_device_seconds=", NumberText(limits.queued_device_seconds));
  }
  if (share != 1) absl::StrAppend(&words, " share=", NumberText(share));
  return words;
}

}  // namespace

absl::Status ReadKeyTerm(const std::string& word, ApiKey& key) {
  const std::vector<std::string> sides = absl::StrSplit(word, absl::MaxSplits('=', 1));
  if (sides.size() != 2) return absl::InvalidArgumentError(absl::StrCat(QuotedValue(word), " is not NAME=NUMBER"));
  const std::string& name = sides[0];
  absl::Status status =
      CheckName("limit", name, {"requests_per_minute", "queued_jobs", "queued_device_seconds", "share"});
  if (!status.ok()) return status;
  double number = 0;
  const bool is_number = absl::SimpleAtod(sides[1], &number);
  if (name == "share") {
    if (!is_number || !(number >= kLeastShare && number <= kMostShare)) {
      return absl::InvalidArgumentError(absl::StrCat("share is ", QuotedValue(sides[1]), "; it must be a number from ",
                                                     kLeastShare, " to ", kMostShare));
    }
    key.share = number;
    return absl::OkStatus();
  }
  const bool is_valid = is_number && number > 0 && number <= 1e9;
  const bool is_whole = is_valid && number == std::floor(number);
  if (!is_valid || (name != "queued_device_seconds" && !is_whole)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", QuotedValue(sides[1]), "; it must be a number above 0 and up to 1e9; leave it out for no limit"));
  }
  if (name == "requests_per_minute") key.limits.requests_per_minute = static_cast<int64_t>(number);
  if (name == "queued_jobs") key.limits.queued_jobs = static_cast<int64_t>(number);
  if (name == "queued_device_seconds") key.limits.queued_device_seconds = number;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ApiKey>> ParseApiKeys(absl::string_view text) {
  std::vector<ApiKey> keys;
  std::set<std::string> names;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    absl::StatusOr<ApiKey> key = ParseLine(words);
    if (key.ok() && !names.insert(key->name).second) {
      key = absl::InvalidArgumentError(absl::StrCat("the name '", key->name, "' is given twice"));
    }
    if (!key.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " of the keys: ", key.status().message()));
    }
    keys.push_back(*std::move(key));
  }
  return keys;
}

absl::StatusOr<NewKey> NewApiKey(const std::string& name, const KeyLimits& limits, double share) {
  RETURN_IF_ERROR(CheckKeyName(name));
  const std::string secret = absl::StrCat("sk-tessera-", absl::BytesToHexString(base::RandomBytes(kSecretBytes)));
  const std::string salt = base::RandomBytes(kSaltBytes);
  return NewKey{.secret = secret,
                .line = absl::StrCat(name, " sha256:", absl::BytesToHexString(salt), ":",
                                     absl::BytesToHexString(HashOf(salt, secret)), TermWords(limits, share))};
}

ApiKeys::ApiKeys(std::string path, std::function<void(const absl::Status&)> report,
                 std::function<void(const Shares&)> use_shares)
    : path_(std::move(path)), report_(std::move(report)), use_shares_(std::move(use_shares)) {}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Load(const std::string& path,
                                                       std::function<void(const absl::Status&)> report,
                                                       std::function<void(const Shares&)> use_shares) {
  std::unique_ptr<ApiKeys> keys(new ApiKeys(path, std::move(report), std::move(use_shares)));
  RETURN_IF_ERROR(keys->Read());
  return keys;
}

absl::Status ApiKeys::Read() {
  seen_ = base::IdentityOf(path_);
  const std::optional<std::string> text = base::ReadSmallFile(path_, kMaxFileBytes);
  if (!text.has_value()) return absl::NotFoundError("the file of API keys cannot be opened");
  if (text->size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file of API keys has ", seen_.bytes, " bytes; valid values are at most ", kMaxFileBytes));
  }
  ASSIGN_OR_RETURN(keys_, ParseApiKeys(*text));
  if (use_shares_) {
    Shares shares;
    for (const ApiKey& key : keys_) shares[key.name] = key.share;
    use_shares_(shares);
  }
  return absl::OkStatus();
}

std::optional<ApiKey> ApiKeys::Find(absl::string_view secret) {
  const std::lock_guard lock(mutex_);
  if (base::IdentityOf(path_) != seen_) {
    const absl::Status status = Read();
    if (report_) report_(status);
  }
  std::optional<ApiKey> found;
  for (const ApiKey& key : keys_) {
    const std::string hash = HashOf(key.salt, secret);
    if (CRYPTO_memcmp(hash.data(), key.hash.data(), hash.size()) == 0) {
      found = ApiKey{.name = key.name, .salt = "", .hash = "", .limits = key.limits, .share = key.share};
    }
  }
  return found;
}

}  // namespace tessera::server

#include "server/jobs/record_ids.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files/sha256.h"

namespace tessera::server {
namespace {

constexpr size_t kTokenDigits = 32;
constexpr size_t kMaskedDigits = 16;
constexpr size_t kMaxNumberDigits = 19;

bool IsHex(absl::string_view text) {
  return std::ranges::all_of(text, [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

std::string TokenFrom(const std::string& text) {
  return absl::BytesToHexString(base::Sha256Of(text)).substr(0, kTokenDigits);
}

bool IsNumber(uint64_t number) { return number >= 1 && number <= uint64_t{INT64_MAX}; }

}  // namespace

RecordIds::RecordIds(std::string secret, uint64_t first_hidden)
    : secret_(std::move(secret)), first_hidden_(first_hidden) {}

std::string RecordIds::JobId(uint64_t job, absl::string_view token) const {
  return job < first_hidden_ ? absl::StrCat("job-", job, "-", token) : Hidden(Kind::kJob, job, token);
}

std::string RecordIds::ImageId(uint64_t task, absl::string_view job_token) const {
  const std::string image = absl::StrCat("image ", task, " of ", job_token);
  if (task < first_hidden_) return absl::StrCat("img-", task, "-", TokenFrom(image));
  // The token of the image contains the secret: a caller who has the job's id knows the job's token and could otherwise
  // try numbers.
  return Hidden(Kind::kImage, task, TokenOf(image));
}

std::string RecordIds::PageId(uint64_t job) const {
  return Hidden(Kind::kPage, job, TokenOf(absl::StrCat("page from ", job)));
}

absl::StatusOr<uint64_t> RecordIds::JobNumber(absl::string_view id) const { return Number(Kind::kJob, id); }

absl::StatusOr<uint64_t> RecordIds::ImageNumber(absl::string_view id) const { return Number(Kind::kImage, id); }

absl::StatusOr<uint64_t> RecordIds::PageNumber(absl::string_view id) const {
  absl::StatusOr<uint64_t> number = Number(Kind::kPage, id);
  if (number.ok() && PageId(*number) != id) return absl::NotFoundError("there is no such page");
  return number;
}

std::string RecordIds::TokenOf(absl::string_view text) const { return TokenFrom(absl::StrCat(secret_, "t", text)); }

std::string RecordIds::Hidden(Kind kind, uint64_t number, absl::string_view token) const {
  const absl::string_view prefix = kind == Kind::kJob ? "job-" : kind == Kind::kImage ? "img-" : "page-";
  return absl::StrCat(prefix, absl::Hex(number ^ Mask(kind, token), absl::kZeroPad16), token);
}

// Secret, kind and token each have a fixed length, so SHA-256 of their concatenation is as good as an HMAC.
uint64_t RecordIds::Mask(Kind kind, absl::string_view token) const {
  const std::string digest = base::Sha256Of(absl::StrCat(secret_, std::string(1, static_cast<char>(kind)), token));
  uint64_t mask = 0;
  for (size_t i = 0; i < sizeof(mask); ++i) mask = mask << 8 | static_cast<uint8_t>(digest[i]);
  return mask;
}

absl::StatusOr<uint64_t> RecordIds::Number(Kind kind, absl::string_view text) const {
  const absl::string_view name = kind == Kind::kJob ? "job" : kind == Kind::kImage ? "image" : "page";
  absl::Status unknown = absl::NotFoundError(absl::StrCat("there is no such ", name));
  if (!absl::ConsumePrefix(&text, kind == Kind::kImage ? "img-" : absl::StrCat(name, "-"))) return unknown;
  uint64_t number = 0;
  const size_t dash = text.find('-');
  if (dash == absl::string_view::npos) {
    if (text.size() != kMaskedDigits + kTokenDigits || !IsHex(text)) return unknown;
    if (!absl::SimpleHexAtoi(text.substr(0, kMaskedDigits), &number)) return unknown;
    number ^= Mask(kind, text.substr(kMaskedDigits));
    return IsNumber(number) && (number >= first_hidden_ || kind == Kind::kPage) ? absl::StatusOr<uint64_t>(number)
                                                                                : unknown;
  }
  const absl::string_view digits = text.substr(0, dash), token = text.substr(dash + 1);
  if (kind == Kind::kPage || digits.empty() || digits.size() > kMaxNumberDigits || digits[0] == '0' ||
      !std::ranges::all_of(digits, absl::ascii_isdigit) || token.size() != kTokenDigits || !IsHex(token) ||
      !absl::SimpleAtoi(digits, &number) || !IsNumber(number) || number >= first_hidden_) {
    return unknown;
  }
  return number;
}

}  // namespace tessera::server

// The ids by which callers name jobs, images and pages of lists, and the numbers of the rows behind them.
//
// An id is a prefix, 16 digits that are the number, masked, and a token of 128 bits that nobody can guess. The mask
// depends on the token and on a secret of the store, so that ids tell nothing of how many jobs there are or of their
// order. Rows from before there was a secret keep the ids that were given out for them, with the number as it is.
// Immutable, hence thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::server {

inline constexpr size_t kRecordIdSecretBytes = 32;

class RecordIds {
 public:
  // `secret` has kRecordIdSecretBytes. Rows from `first_hidden` on have hidden numbers.
  RecordIds(std::string secret, uint64_t first_hidden);

  // `token`: the job's, 32 digits of lower-case hexadecimal.
  std::string JobId(uint64_t job, absl::string_view token) const;
  std::string ImageId(uint64_t task, absl::string_view job_token) const;
  std::string PageId(uint64_t job) const;

  // The number that such an id would have, which need not be that of a row: the caller compares the row's own id with
  // this one. NOT_FOUND for anything else, so that a malformed id and a strange one look the same.
  absl::StatusOr<uint64_t> JobNumber(absl::string_view id) const;
  absl::StatusOr<uint64_t> ImageNumber(absl::string_view id) const;
  // Of what PageId gave and of nothing else: where an altered one would begin tells of the number.
  absl::StatusOr<uint64_t> PageNumber(absl::string_view id) const;

 private:
  enum class Kind : char { kJob = 'j', kImage = 'i', kPage = 'p' };

  std::string TokenOf(absl::string_view text) const;
  std::string Hidden(Kind kind, uint64_t number, absl::string_view token) const;
  uint64_t Mask(Kind kind, absl::string_view token) const;
  absl::StatusOr<uint64_t> Number(Kind kind, absl::string_view text) const;

  const std::string secret_;
  const uint64_t first_hidden_;
};

}  // namespace tessera::server

// RecordIds converts between the ids by which callers name jobs, images and pages of lists, and the numbers of their
// rows.
//
// An id is a prefix, 16 digits with the masked number, and an unguessable token of 128 bits. The mask depends on the
// token and on a secret of the store, so that ids reveal neither the number of jobs nor their order. Rows from before
// the secret existed keep their published ids, with the unmasked number. Immutable, hence thread-safe.
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

  // `token` is the job's: 32 digits of lower-case hexadecimal.
  std::string JobId(uint64_t job, absl::string_view token) const;
  std::string ImageId(uint64_t task, absl::string_view job_token) const;
  std::string PageId(uint64_t job) const;

  // Return the number in the id, which need not be that of a row: the caller compares the row's id with this one.
  // NOT_FOUND for anything else, so that malformed and unknown ids look the same.
  absl::StatusOr<uint64_t> JobNumber(absl::string_view id) const;
  absl::StatusOr<uint64_t> ImageNumber(absl::string_view id) const;
  // Accepts only what PageId returned, because the result of an altered id would reveal the number.
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

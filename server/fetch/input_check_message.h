// The messages between InputCheck and the operator's service. Pure.
//
// The request's body is {"prompt": "…", "negative_prompt": "…", "images": ["data:image/png;base64,…", …], "key": "…"};
// the answer's is {"allowed": true} or {"allowed": false, "reason": "…", "categories": ["…", …]}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::server {

// What one request asks for. Several prompts are those of several text encoders.
struct CheckedInput {
  std::vector<std::string> prompts;  // valid UTF-8
  std::vector<std::string> negative_prompts;
  std::vector<absl::string_view> pictures;  // PNG files, which must outlive the check
  std::string tenant;                       // name of the caller's key
};

// CheckedInputBody makes the body part by part, so that it is never in memory as a whole.
class CheckedInputBody {
 public:
  explicit CheckedInputBody(const CheckedInput& input);

  uint64_t bytes() const { return bytes_; }  // of the whole

  // Writes the next bytes, at most `most`, to `out` and returns their number; 0 at the end.
  size_t Read(char* out, size_t most);

 private:
  struct Piece {
    absl::string_view bytes;
    bool is_picture = false;  // written in base64
  };

  const std::string before_, after_;
  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
  size_t piece_ = 0, offset_ = 0;  // of what is encoded next
  std::string encoded_;            // and not yet read
  size_t read_ = 0;                // bytes of encoded_
};

struct Verdict {
  bool allowed = false;
  std::string reason;                   // one line of at most kMaxReasonBytes; empty: none
  std::vector<std::string> categories;  // at most kMaxCategories of at most kMaxCategoryBytes, in the same form
};

inline constexpr size_t kMaxVerdictBytes = 64 << 10;
inline constexpr size_t kMaxReasonBytes = 500, kMaxCategoryBytes = 64, kMaxCategories = 16;

// INVALID_ARGUMENT, for the operator, if the answer is no JSON object with the field `allowed`, or another of its
// fields has the wrong type. Other fields are ignored. Longer texts are cut.
absl::StatusOr<Verdict> ParseVerdict(absl::string_view body);

}  // namespace tessera::server

#include "runtime/training/shared_scan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/macros/status_macros.h"
#include "runtime/training/checkpoints/agreement.h"

namespace tessera::runtime {
namespace {

using Content = absl::StatusOr<control::PictureContent>;

// Four parts, each ending with a NUL, which no path contains: 0, width, height and digest; or the code of an error, its
// message, and two empty parts.
constexpr size_t kParts = 4;

// The number of paths whose contents the ranks exchange together, which bounds the memory needed.
constexpr size_t kPathsAtOnce = 1024;

std::string TextOf(const Content& content) {
  const absl::string_view end("\0", 1);
  if (!content.ok()) {
    return absl::StrCat(static_cast<int>(content.status().code()), end, content.status().message(), end, end, end);
  }
  return absl::StrCat(0, end, content->size.width, end, content->size.height, end, control::DigestText(content->digest),
                      end);
}

Content ContentOf(const absl::string_view* parts) {
  int code = 0;
  control::PictureContent content;
  if (!absl::SimpleAtoi(parts[0], &code)) return absl::InternalError("a rank's report on a picture is malformed");
  if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), parts[1]);
  if (!absl::SimpleAtoi(parts[1], &content.size.width) || !absl::SimpleAtoi(parts[2], &content.size.height)) {
    return absl::InternalError("a rank's report on a picture is malformed");
  }
  const std::string digest = absl::HexStringToBytes(parts[3]);
  if (digest.size() != content.digest.size()) {
    return absl::InternalError("a rank's report on a picture is malformed");
  }
  std::ranges::copy(digest, content.digest.begin());
  return content;
}

// Distributes these pictures over the ranks; all ranks get the contents that each of them found.
void LookTogether(absl::Span<const std::string> paths, parallel::Communicator& ranks,
                  const std::function<void()>& progress, absl::Span<Content> contents) {
  const auto size = static_cast<size_t>(ranks.size());
  std::string own;
  for (auto i = static_cast<size_t>(ranks.rank()); i < paths.size(); i += size) {
    own += TextOf(control::LookAtPicture(paths[i]));
    progress();
  }
  const std::vector<std::string> all = GatherTexts(own, ranks);
  for (size_t rank = 0; rank < size; ++rank) {
    const std::vector<absl::string_view> parts = absl::StrSplit(all[rank], '\0');
    const size_t count = (parts.size() - 1) / kParts;
    for (size_t n = 0; n < count && rank + n * size < paths.size(); ++n) {
      contents[rank + n * size] = ContentOf(&parts[n * kParts]);
    }
  }
}

}  // namespace

absl::StatusOr<control::TrainingSet> ScanTogether(const control::DatasetOptions& options, parallel::Communicator& ranks,
                                                  const std::function<void()>& progress) {
  absl::StatusOr<control::DatasetListing> listing = control::DatasetListing::Create(options);
  RETURN_IF_ERROR(Agree(listing.status(), ranks));
  const std::vector<std::string> listings = GatherTexts(listing->Digest(), ranks);
  if (std::ranges::any_of(listings, [&](const std::string& digest) { return digest != listings.front(); })) {
    return absl::AbortedError("images or captions changed while they were listed; try again");
  }
  const std::vector<std::string>& paths = listing->paths();
  std::vector<Content> contents(paths.size(), absl::UnknownError("no rank has examined it"));
  for (size_t first = 0; first < paths.size(); first += kPathsAtOnce) {
    const size_t end = std::min(paths.size(), first + kPathsAtOnce);
    LookTogether(absl::MakeConstSpan(paths).subspan(first, end - first), ranks, progress,
                 absl::MakeSpan(contents).subspan(first, end - first));
  }
  return (*std::move(listing)).Scan(contents);
}

}  // namespace tessera::runtime

// Checks that each token of a layout has exactly one owner.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "parallel/plan/token_layout.h"

namespace tessera {

// Returns whether `runs` together cover the text tokens below `text` and the image tokens below `image` exactly once.
inline bool CoverOnce(std::vector<parallel::TokenRun> runs, int64_t text, int64_t image) {
  std::ranges::sort(runs, [](const parallel::TokenRun& a, const parallel::TokenRun& b) {
    return std::pair(a.text, a.tokens.begin) < std::pair(b.text, b.tokens.begin);
  });
  int64_t next_text = 0, next_image = 0;
  for (const parallel::TokenRun& run : runs) {
    int64_t& next = run.text ? next_text : next_image;
    if (run.tokens.begin != next || run.tokens.count() <= 0) return false;
    next = run.tokens.end;
  }
  return next_text == text && next_image == image;
}

// Returns the problem with a layout's ownership, or an empty string.
inline std::string OwnershipFault(const parallel::TokenLayout& layout) {
  const parallel::TokenCounts& counts = layout.counts();
  int64_t next = 0;
  for (int patch = 0; patch < counts.patches; ++patch) {
    const parallel::TokenSpan whole = layout.Patch(patch);
    if (whole.begin != next || whole.count() < 0) return absl::StrCat("patch ", patch, " does not follow the last one");
    next = whole.end;
    int64_t begin = whole.begin;
    for (int ring = 0; ring < counts.ring; ++ring) {
      if (layout.Image(patch, ring).begin != begin) return "a Ulysses group's run does not follow the last one";
      for (int ulysses = 0; ulysses < counts.ulysses; ++ulysses) {
        const parallel::TokenSpan own = layout.Image(patch, ring, ulysses);
        if (own.begin != begin || own.count() < 0)
          return absl::StrCat("a share of patch ", patch, " has the wrong place");
        begin = own.end;
      }
      if (layout.Image(patch, ring).end != begin) return "a Ulysses group's run has the wrong end";
    }
    if (begin != whole.end) return absl::StrCat("tokens of patch ", patch, " have no owner");
  }
  if (next != counts.image) return "tokens of the image are in no patch";

  std::vector<parallel::TokenRun> runs;
  for (int ring = 0; ring < counts.ring; ++ring) {
    for (int ulysses = 0; ulysses < counts.ulysses; ++ulysses) {
      std::ranges::copy(layout.Runs(parallel::TokenRows::kTextThenImage, layout.all(), ring, ulysses),
                        std::back_inserter(runs));
    }
  }
  return CoverOnce(runs, counts.text, counts.image) ? "" : "a token has no owner or more than one";
}

}  // namespace tessera

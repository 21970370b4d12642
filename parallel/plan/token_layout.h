// TokenLayout determines which rank owns which tokens of an image and its text under sequence parallelism (ring ×
// Ulysses) and PipeFusion: the tables of row counts that every rank knows. Pure arithmetic.
//
// The image is divided into `patches` that are contiguous and as equal as possible, and every rank owns a share of
// every patch. So a token has the same owner whether a pass runs over the whole image (warm-up) or over one patch, and
// no token is moved or reordered between the two. Text is divided once; its rows run in every pass that includes patch
// 0. Row counts are uneven in general and may be zero.
//
// Ulysses is the inner axis: the ranks of one Ulysses group hold a contiguous run of each patch, and after the exchange
// of tokens for heads each of them holds the whole run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/plan/token_span.h"

namespace tessera::parallel {

// Consecutive patches [begin, end) of one forward pass.
struct PatchRange {
  int begin = 0;
  int end = 1;
  int count() const { return end - begin; }
  bool with_text() const { return begin == 0; }
  bool operator==(const PatchRange&) const = default;
};

// The rows of an attention, in the order in which a rank joins its own rows. kReferences are the tokens of reference
// pictures, which are the last ones of the text.
enum class TokenRows : uint8_t { kImage, kText, kTextThenImage, kImageThenText, kReferences };

// Consecutive rows with consecutive global indices: of the text, or of the image.
struct TokenRun {
  bool text = false;
  TokenSpan tokens;
  bool operator==(const TokenRun&) const = default;
};

struct TokenCounts {
  int64_t image = 0;
  int64_t text = 0;  // text tokens that are distributed over ranks like the image's; 0 if every rank has the whole text
  int patches = 1;
  int ring = 1;
  int ulysses = 1;
  // Text rows to allow for in the size of patch 0; absent: `text`. Rows with different texts that must have the same
  // patches share one value.
  std::optional<int64_t> text_work = std::nullopt;
  int64_t references = 0;  // how many of the text tokens are those of reference pictures
};

// Immutable. Patches and ranks in arguments must be within the layout. The index in a table is the coordinate on the
// axis; in a table over the sequence-parallel group it is ring coordinate · Ulysses size + Ulysses coordinate.
class TokenLayout {
 public:
  // Returns InvalidArgument unless token counts are 0 … 2^40, references at most the text, and the others 1 … 2^16.
  static absl::StatusOr<TokenLayout> Create(const TokenCounts& counts);

  const TokenCounts& counts() const { return counts_; }
  int group_size() const { return counts_.ring * counts_.ulysses; }
  PatchRange all() const { return {0, counts_.patches}; }

  // Global indices. Patches differ by at most one token, except patch 0: its text rows count as work, so it has fewer
  // image tokens, though at least half as many. The variants without `ulysses` return the union over a ring rank's
  // Ulysses group.
  TokenSpan Patch(int patch) const;
  TokenSpan Image(int patch, int ring, int ulysses) const;
  TokenSpan Image(int patch, int ring) const;
  TokenSpan Text(int ring, int ulysses) const;
  TokenSpan Text(int ring) const;
  TokenSpan References(int ring, int ulysses) const;

  // A rank's own rows in a pass over `patches`: text as one run, then image patch after patch. Contiguous runs are
  // merged; empty runs are omitted.
  std::vector<TokenRun> Runs(TokenRows rows, PatchRange patches, int ring, int ulysses) const;
  int64_t Rows(TokenRows rows, PatchRange patches, int ring, int ulysses) const;

  // For the exchange of tokens and heads: the rows of each rank in the Ulysses group of ring rank `ring`, and the order
  // of rows after the exchange (the ranks' runs in rank order).
  std::vector<int64_t> UlyssesRows(TokenRows rows, PatchRange patches, int ring) const;
  std::vector<TokenRun> ExchangedRuns(TokenRows rows, PatchRange patches, int ring) const;

  // For the ring's rotation of keys and values: rows of each ring rank after the exchange.
  std::vector<int64_t> RingRows(TokenRows rows, PatchRange patches) const;

  // For gathering over the whole sequence-parallel group: rows of each rank, and the order of the gathered rows.
  std::vector<int64_t> GroupRows(TokenRows rows, PatchRange patches) const;
  std::vector<TokenRun> GatheredRuns(TokenRows rows, PatchRange patches) const;

  // Stale keys and values: a ring rank keeps one row for each token that it holds after the exchange, text first, then
  // image, both in ascending global index. The rows of `run`, whose tokens must be among those, are consecutive and
  // start at the returned row.
  int64_t StoreRows(int ring) const;
  int64_t StoreRow(int ring, const TokenRun& run) const;

 private:
  explicit TokenLayout(const TokenCounts& counts) : counts_(counts) {}

  TokenCounts counts_;
};

}  // namespace tessera::parallel

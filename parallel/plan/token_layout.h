// Which rank owns which tokens of an image and its text under sequence parallelism (ring × Ulysses) and PipeFusion: the
// tables of row counts that every rank knows. Pure arithmetic.
//
// The image is cut into `patches`, contiguous and as equal as they can be, and every rank owns its share of every
// patch. So a token has the same owner whether a pass runs over the whole image (warm-up) or over one patch, and
// nothing is ever moved or reordered between the two. Text is cut once; its rows run in every pass that includes patch
// 0. Row counts are uneven as a rule, and zero is valid.
//
// Ulysses is the inner axis: the ranks of one Ulysses group hold a contiguous run of each patch, and after the exchange
// of tokens for heads each of them holds that run whole.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/plan/token_span.h"

namespace tessera::parallel {

// Consecutive patches that one forward pass runs over, [begin, end).
struct PatchRange {
  int begin = 0;
  int end = 1;
  int count() const { return end - begin; }
  bool with_text() const { return begin == 0; }
  bool operator==(const PatchRange&) const = default;
};

// Which rows go through an attention, in the order in which a rank joins its own.
enum class TokenRows : uint8_t { kImage, kText, kTextThenImage, kImageThenText };

// Consecutive rows with consecutive global indices: of the text, or of the image.
struct TokenRun {
  bool text = false;
  TokenSpan tokens;
  bool operator==(const TokenRun&) const = default;
};

struct TokenCounts {
  int64_t image = 0;
  int64_t text = 0;  // that are spread over ranks like the image's; 0 where every rank has the whole text
  int patches = 1;
  int ring = 1;
  int ulysses = 1;
  // Text rows to allow for where patch 0 is cut; absent: `text`. Rows with different texts whose patches must be the
  // same agree on it.
  std::optional<int64_t> text_work = std::nullopt;
};

// Immutable. Arguments that name patches and ranks lie within what it was made for. In tables, index = coordinate on
// the axis; in a table over the sequence-parallel group, index = ring coordinate · Ulysses size + Ulysses coordinate.
class TokenLayout {
 public:
  // InvalidArgument unless token counts are 0 … 2^40 and the others 1 … 2^16.
  static absl::StatusOr<TokenLayout> Create(const TokenCounts& counts);

  const TokenCounts& counts() const { return counts_; }
  int group_size() const { return counts_.ring * counts_.ulysses; }
  PatchRange all() const { return {0, counts_.patches}; }

  // Global indices. Patches differ by one token at most, but for patch 0: its text rows are work as well, so it has
  // fewer image tokens, though no less than half as many. The Ulysses-wide variants are the union over a ring rank's
  // Ulysses group.
  TokenSpan Patch(int patch) const;
  TokenSpan Image(int patch, int ring, int ulysses) const;
  TokenSpan Image(int patch, int ring) const;
  TokenSpan Text(int ring, int ulysses) const;
  TokenSpan Text(int ring) const;

  // A rank's own rows in a pass over `patches`: text as one run, image patch after patch. Runs that continue each other
  // are one; empty ones are left out.
  std::vector<TokenRun> Runs(TokenRows rows, PatchRange patches, int ring, int ulysses) const;
  int64_t Rows(TokenRows rows, PatchRange patches, int ring, int ulysses) const;

  // For the exchange of tokens and heads: rows of each rank in the Ulysses group of ring rank `ring`, and the order in
  // which rows stand after it (the ranks' runs, one rank after another).
  std::vector<int64_t> UlyssesRows(TokenRows rows, PatchRange patches, int ring) const;
  std::vector<TokenRun> ExchangedRuns(TokenRows rows, PatchRange patches, int ring) const;

  // For the ring's rotation of keys and values: rows of each ring rank after the exchange.
  std::vector<int64_t> RingRows(TokenRows rows, PatchRange patches) const;

  // For gathering over the whole sequence-parallel group: rows of each rank, and the order in which they stand.
  std::vector<int64_t> GroupRows(TokenRows rows, PatchRange patches) const;
  std::vector<TokenRun> GatheredRuns(TokenRows rows, PatchRange patches) const;

  // Stale keys and values: a ring rank keeps one row for each token it holds after the exchange, text first, then
  // image, both by rising global index. `run`, which must be among those tokens, takes consecutive rows from the
  // returned one.
  int64_t StoreRows(int ring) const;
  int64_t StoreRow(int ring, const TokenRun& run) const;

 private:
  explicit TokenLayout(const TokenCounts& counts) : counts_(counts) {}

  TokenCounts counts_;
};

}  // namespace tessera::parallel

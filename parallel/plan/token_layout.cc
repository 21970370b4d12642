#include "parallel/plan/token_layout.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 40;
constexpr int kMaxParts = 1 << 16;

// Returns the first index of part `part` if `count` elements are divided into `parts` runs that differ by at most one;
// the longer runs come first.
int64_t PartBegin(int64_t count, int parts, int part) {
  if (base::Planted("uneven_last_shard_dropped")) return count / parts * part;
  return count / parts * part + std::min<int64_t>(count % parts, part);
}

// Like PartBegin, with the longer runs last.
int64_t PartBeginLongerLast(int64_t count, int parts, int part) {
  return count - PartBegin(count, parts, parts - part);
}

absl::Status CheckRange(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; valid values are ", low, " to ", high));
}

// Appends `run`, or extends the last run if they are contiguous.
void Append(const TokenRun& run, std::vector<TokenRun>& runs) {
  if (run.tokens.count() == 0) return;
  if (!runs.empty() && runs.back().text == run.text && runs.back().tokens.end == run.tokens.begin) {
    runs.back().tokens.end = run.tokens.end;
  } else {
    runs.push_back(run);
  }
}

bool HasImage(TokenRows rows) { return rows != TokenRows::kText && rows != TokenRows::kReferences; }
bool HasText(TokenRows rows) { return rows != TokenRows::kImage; }

}  // namespace

absl::StatusOr<TokenLayout> TokenLayout::Create(const TokenCounts& counts) {
  RETURN_IF_ERROR(CheckRange("the number of image tokens", counts.image, 0, kMaxTokens));
  RETURN_IF_ERROR(CheckRange("the number of text tokens", counts.text, 0, kMaxTokens));
  RETURN_IF_ERROR(CheckRange("the text work", counts.text_work.value_or(0), 0, kMaxTokens));
  RETURN_IF_ERROR(CheckRange("the number of tokens of references", counts.references, 0, counts.text));
  RETURN_IF_ERROR(CheckRange("patches", counts.patches, 1, kMaxParts));
  RETURN_IF_ERROR(CheckRange("ring", counts.ring, 1, kMaxParts));
  const int most_ulysses = kMaxParts / counts.ring;  // the group is also a number of parts
  RETURN_IF_ERROR(CheckRange("ulysses", counts.ulysses, 1, most_ulysses));
  return TokenLayout(counts);
}

TokenSpan TokenLayout::Patch(int patch) const {
  assert(patch >= 0 && patch < counts_.patches);
  if (counts_.patches == 1) return {0, counts_.image};
  const int64_t text = counts_.text_work.value_or(counts_.text);
  const int64_t even = counts_.image / counts_.patches;
  const int64_t with_text = (counts_.image + text) / counts_.patches - text;
  const int64_t first = text == 0 ? PartBegin(counts_.image, counts_.patches, 1) : std::max((even + 1) / 2, with_text);
  if (patch == 0) return {0, first};
  const int64_t rest = counts_.image - first;
  return {first + PartBegin(rest, counts_.patches - 1, patch - 1), first + PartBegin(rest, counts_.patches - 1, patch)};
}

TokenSpan TokenLayout::Image(int patch, int ring, int ulysses) const {
  assert(ring >= 0 && ring < counts_.ring && ulysses >= 0 && ulysses < counts_.ulysses);
  const TokenSpan whole = Patch(patch);
  const int part = ring * counts_.ulysses + ulysses;
  return {whole.begin + PartBegin(whole.count(), group_size(), part),
          whole.begin + PartBegin(whole.count(), group_size(), part + 1)};
}

TokenSpan TokenLayout::Image(int patch, int ring) const {
  return {Image(patch, ring, 0).begin, Image(patch, ring, counts_.ulysses - 1).end};
}

// The first ranks have the longer shares of the image, the last ranks those of the text.
TokenSpan TokenLayout::Text(int ring, int ulysses) const {
  assert(ring >= 0 && ring < counts_.ring && ulysses >= 0 && ulysses < counts_.ulysses);
  const int part = ring * counts_.ulysses + ulysses;
  return {PartBeginLongerLast(counts_.text, group_size(), part),
          PartBeginLongerLast(counts_.text, group_size(), part + 1)};
}

TokenSpan TokenLayout::References(int ring, int ulysses) const {
  const TokenSpan own = Text(ring, ulysses);
  return {std::clamp(counts_.text - counts_.references, own.begin, own.end), own.end};
}

TokenSpan TokenLayout::Text(int ring) const { return {Text(ring, 0).begin, Text(ring, counts_.ulysses - 1).end}; }

std::vector<TokenRun> TokenLayout::Runs(TokenRows rows, PatchRange patches, int ring, int ulysses) const {
  assert(patches.begin >= 0 && patches.begin <= patches.end && patches.end <= counts_.patches);
  std::vector<TokenRun> runs;
  const TokenRun text = {.text = true,
                         .tokens = rows == TokenRows::kReferences ? References(ring, ulysses) : Text(ring, ulysses)};
  const bool with_text = HasText(rows) && patches.with_text();
  if (with_text && rows != TokenRows::kImageThenText) Append(text, runs);
  for (int patch = patches.begin; HasImage(rows) && patch < patches.end; ++patch) {
    Append({.text = false, .tokens = Image(patch, ring, ulysses)}, runs);
  }
  if (with_text && rows == TokenRows::kImageThenText) Append(text, runs);
  return runs;
}

int64_t TokenLayout::Rows(TokenRows rows, PatchRange patches, int ring, int ulysses) const {
  int64_t count = 0;
  for (const TokenRun& run : Runs(rows, patches, ring, ulysses)) count += run.tokens.count();
  return count;
}

std::vector<int64_t> TokenLayout::UlyssesRows(TokenRows rows, PatchRange patches, int ring) const {
  std::vector<int64_t> table;
  for (int ulysses = 0; ulysses < counts_.ulysses; ++ulysses) table.push_back(Rows(rows, patches, ring, ulysses));
  return table;
}

std::vector<TokenRun> TokenLayout::ExchangedRuns(TokenRows rows, PatchRange patches, int ring) const {
  std::vector<TokenRun> runs;
  for (int ulysses = 0; ulysses < counts_.ulysses; ++ulysses) {
    for (const TokenRun& run : Runs(rows, patches, ring, ulysses)) Append(run, runs);
  }
  return runs;
}

std::vector<int64_t> TokenLayout::RingRows(TokenRows rows, PatchRange patches) const {
  std::vector<int64_t> table(counts_.ring);
  for (int ring = 0; ring < counts_.ring; ++ring) {
    for (const int64_t own : UlyssesRows(rows, patches, ring)) table[ring] += own;
  }
  return table;
}

std::vector<int64_t> TokenLayout::GroupRows(TokenRows rows, PatchRange patches) const {
  std::vector<int64_t> table;
  for (int ring = 0; ring < counts_.ring; ++ring) {
    std::ranges::copy(UlyssesRows(rows, patches, ring), std::back_inserter(table));
  }
  return table;
}

std::vector<TokenRun> TokenLayout::GatheredRuns(TokenRows rows, PatchRange patches) const {
  std::vector<TokenRun> runs;
  for (int ring = 0; ring < counts_.ring; ++ring) {
    for (const TokenRun& run : ExchangedRuns(rows, patches, ring)) Append(run, runs);
  }
  return runs;
}

int64_t TokenLayout::StoreRows(int ring) const { return RingRows(TokenRows::kTextThenImage, all())[ring]; }

int64_t TokenLayout::StoreRow(int ring, const TokenRun& run) const {
  const TokenSpan text = Text(ring);
  if (run.text) {
    assert(run.tokens.begin >= text.begin && run.tokens.end <= text.end);
    return run.tokens.begin - text.begin;
  }
  int64_t row = text.count();
  for (int patch = 0; patch < counts_.patches; ++patch) {
    const TokenSpan held = Image(patch, ring);
    if (run.tokens.begin < held.end) {
      assert(run.tokens.begin >= held.begin);
      return row + run.tokens.begin - held.begin;
    }
    row += held.count();
  }
  assert(run.tokens.count() == 0);
  return row;
}

}  // namespace tessera::parallel

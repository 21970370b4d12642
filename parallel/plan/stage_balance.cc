#include "parallel/plan/stage_balance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tessera::parallel {

double TokenFlops::Products(int64_t image_tokens, int64_t text_tokens) const {
  return image * static_cast<double>(image_tokens) + text * static_cast<double>(text_tokens);
}

double TokenFlops::Attention(int64_t image_tokens, int64_t text_tokens) const {
  const double n = static_cast<double>(image_tokens), t = static_cast<double>(text_tokens);
  return image_pair * n * n + image_text_pair * n * t + text_pair * t * t;
}

double TokenFlops::Total(int64_t image_tokens, int64_t text_tokens) const {
  return Products(image_tokens, text_tokens) + Attention(image_tokens, text_tokens);
}

TokenFlops& TokenFlops::operator+=(const TokenFlops& other) {
  image += other.image;
  text += other.text;
  image_pair += other.image_pair;
  image_text_pair += other.image_text_pair;
  text_pair += other.text_pair;
  return *this;
}

TokenFlops FlopsOf(const BlockCost& block) {
  const double width = static_cast<double>(block.width), square = width * width;
  const double mlp = 2 * block.mlp_ratio * square;  // weights: in and out
  const double attention = 4 * square;              // weights: q, k, v, out
  const double pair = 4 * width;
  TokenFlops flops = {.image = 2 * (attention + mlp), .image_pair = pair};
  switch (block.kind) {
    case BlockKind::kImage:
      break;
    case BlockKind::kCross:
      flops.image += 2 * 2 * square;  // q and out
      flops.text = 2 * 2 * square;    // k and v
      flops.image_text_pair = pair;
      break;
    case BlockKind::kJoint:
    case BlockKind::kFused:
    case BlockKind::kUnified:
      flops.text = flops.image;
      flops.image_text_pair = 2 * pair;
      flops.text_pair = pair;
      break;
  }
  if (block.second_attention) {
    flops.image += 2 * attention;
    flops.image_pair += pair;
  }
  if (block.long_skip) flops.image += 2 * 2 * square;
  return flops;
}

absl::StatusOr<std::vector<int>> BalanceStages(std::span<const double> costs, int stages) {
  const int blocks = static_cast<int>(costs.size());
  if (stages < 1 || stages > blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of stages is ", stages, "; valid values are 1 to the number of blocks, ", blocks));
  }
  std::vector<double> before(blocks + 1, 0);  // cost of the blocks before each
  for (int b = 0; b < blocks; ++b) {
    if (!(costs[b] >= 0) || std::isinf(costs[b])) {
      return absl::InvalidArgumentError(absl::StrCat("the cost of block ", b, " is ", costs[b]));
    }
    before[b + 1] = before[b] + costs[b];
  }
  // best[s][b]: lowest cost of the most expensive of s runs over blocks b …
  const double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(blocks + 1, none));
  best[0][blocks] = 0;
  for (int s = 1; s <= stages; ++s) {
    for (int b = 0; b < blocks; ++b) {
      for (int end = b + 1; end <= blocks; ++end) {
        best[s][b] = std::min(best[s][b], std::max(before[end] - before[b], best[s - 1][end]));
      }
    }
  }
  std::vector<int> bounds = {0};
  for (int s = stages; s > 0; --s) {
    int end = bounds.back() + 1;
    while (std::max(before[end] - before[bounds.back()], best[s - 1][end]) > best[stages][0]) ++end;
    bounds.push_back(end);
  }
  return bounds;
}

}  // namespace tessera::parallel

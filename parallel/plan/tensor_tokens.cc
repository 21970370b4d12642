#include "parallel/plan/tensor_tokens.h"

#include <numeric>

namespace tessera::parallel {
namespace {

std::vector<int64_t> Shares(int64_t count, int ranks, bool longer_last) {
  std::vector<int64_t> shares(static_cast<size_t>(ranks), count / ranks);
  const auto longer = static_cast<size_t>(count % ranks);
  for (size_t i = 0; i < longer; ++i) ++shares[longer_last ? shares.size() - 1 - i : i];
  return shares;
}

}  // namespace

// As in TokenLayout, the first ranks have the longer shares of the image, the last ranks those of the text.
TensorTokens::TensorTokens(int64_t image, int64_t text, int ranks)
    : image_(Shares(image, ranks, /*longer_last=*/false)), text_(Shares(text, ranks, /*longer_last=*/true)) {}

TokenSpan TensorTokens::Image(int rank) const {
  const int64_t begin = std::accumulate(image_.begin(), image_.begin() + rank, int64_t{0});
  return {begin, begin + image_[static_cast<size_t>(rank)]};
}

std::vector<std::vector<int64_t>> TensorTokens::Runs(TokenRows rows) const {
  switch (rows) {
    case TokenRows::kImage:
      return {image_};
    case TokenRows::kText:
      return {text_};
    case TokenRows::kTextThenImage:
      return {text_, image_};
    case TokenRows::kReferences:
      return {};  // no product is of them alone
    case TokenRows::kImageThenText:
      break;
  }
  return {image_, text_};
}

}  // namespace tessera::parallel

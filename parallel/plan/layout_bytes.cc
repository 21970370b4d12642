#include "parallel/plan/layout_bytes.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "parallel/plan/token_layout.h"

// B is the number of the pass's rows on this rank, e the bytes per element, D the width of this rank's heads.

namespace tessera::parallel {
namespace {

// Returns the elements of `total` in part `part` of an even distribution, the longer shares first.
int64_t EvenShare(int64_t total, int parts, int part) { return total / parts + (part < total % parts ? 1 : 0); }

struct AttentionRows {
  TokenRows queries = TokenRows::kImage;
  TokenRows keys = TokenRows::kImage;
};

constexpr TokenRows kAll = TokenRows::kTextThenImage;

std::vector<AttentionRows> Attentions(const BlockExchange& block) {
  std::vector<AttentionRows> attentions;
  switch (block.kind) {
    case BlockKind::kImage:
    case BlockKind::kCross:  // text is not exchanged
      attentions.push_back({});
      break;
    case BlockKind::kJoint:
    case BlockKind::kFused:
    case BlockKind::kUnified:
      attentions.push_back({.queries = block.text_ends ? TokenRows::kImage : kAll, .keys = kAll});
  }
  if (block.second_attention) attentions.push_back({});
  return attentions;
}

// The rows of every product that is summed over the tensor axis.
std::vector<TokenRows> RowProducts(const BlockExchange& block) {
  std::vector<TokenRows> products;
  switch (block.kind) {
    case BlockKind::kImage:
      products = {TokenRows::kImage, TokenRows::kImage};
      break;
    case BlockKind::kCross:
      products = {TokenRows::kImage, TokenRows::kImage, TokenRows::kImage};
      break;
    case BlockKind::kJoint:
      products = {TokenRows::kImage, TokenRows::kImage};
      if (!block.text_ends) products.insert(products.end(), {TokenRows::kText, TokenRows::kText});
      break;
    case BlockKind::kFused:
      products = {kAll};
      break;
    case BlockKind::kUnified:
      products = {kAll, kAll};
  }
  if (block.second_attention) products.push_back(TokenRows::kImage);
  return products;
}

int64_t Sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

// The rows of a pass on one cfg rank.
struct CfgShare {
  int64_t rows = 0;
  int64_t text_tokens = 0;  // of the longest text
};

CfgShare ShareOfRows(const ForwardPass& pass, int ranks, int rank) {
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += EvenShare(std::ssize(pass.text_tokens), ranks, r);
  CfgShare share{.rows = EvenShare(std::ssize(pass.text_tokens), ranks, rank)};
  for (int64_t row = begin; row < begin + share.rows; ++row) {
    share.text_tokens = std::max(share.text_tokens, pass.text_tokens[static_cast<size_t>(row)]);
  }
  return share;
}

// One rank's place in its mesh, and the tokens it owns.
class RankOfPass {
 public:
  RankOfPass(const Mesh& mesh, int rank, const TokenLayout& tokens, int64_t row_bytes)
      : mesh_(mesh), at_(mesh.Coords(rank)), tokens_(tokens), row_bytes_(row_bytes) {}

  int64_t Own(TokenRows rows) const { return tokens_.Rows(rows, tokens_.all(), at_.ring, at_.ulysses); }

  // Own tokens' q, k and v are sent to the ranks of other heads; results of those ranks' tokens are sent back from
  // here.
  int64_t Ulysses(const AttentionRows& attention, int64_t width) const {
    const int size = mesh_.size(Axis::kUlysses);
    if (size == 1) return 0;
    const int64_t queries = Own(attention.queries), keys = Own(attention.keys);
    const int64_t all_queries = Sum(tokens_.UlyssesRows(attention.queries, tokens_.all(), at_.ring));
    return ((queries + 2 * keys) * (size - 1) + all_queries - queries) * (width / size) * row_bytes_;
  }

  // A rank forwards every rank's keys and values except those of the next rank, which already has them.
  int64_t Ring(const AttentionRows& attention, int64_t width) const {
    const int size = mesh_.size(Axis::kRing);
    if (size == 1) return 0;
    const std::vector<int64_t> rows = tokens_.RingRows(attention.keys, tokens_.all());
    const int64_t handed_on = Sum(rows) - rows[static_cast<size_t>((at_.ring + 1) % size)];
    return 2 * handed_on * (width / mesh_.size(Axis::kUlysses)) * row_bytes_;
  }

  // An all-reduce counts as reduce-scatter and all-gather of its elements.
  int64_t Tensor(TokenRows product, int64_t batch, int64_t width, int64_t element_bytes) const {
    const int size = mesh_.size(Axis::kTensor);
    if (size == 1) return 0;
    const int64_t elements = batch * Own(product) * width, own = EvenShare(elements, size, at_.tensor);
    return (elements - own + own * (size - 1)) * element_bytes;
  }

 private:
  const Mesh& mesh_;
  MeshCoords at_;
  const TokenLayout& tokens_;
  int64_t row_bytes_;  // B · e
};

}  // namespace

bool ExchangeModel::joint_text() const {
  return std::ranges::any_of(blocks, [](const BlockExchange& block) {
    return block.kind == BlockKind::kJoint || block.kind == BlockKind::kFused || block.kind == BlockKind::kUnified;
  });
}

ExchangedBytes& ExchangedBytes::operator+=(const ExchangedBytes& other) {
  cfg += other.cfg;
  pipe += other.pipe;
  sequence += other.sequence;
  ring += other.ring;
  ulysses += other.ulysses;
  tensor += other.tensor;
  return *this;
}

ExchangedBytes PassBytes(const ExchangeModel& model, const Mesh& mesh, std::span<const int> stage_bounds, int rank,
                         const ForwardPass& pass) {
  const MeshCoords at = mesh.Coords(rank);
  const int stages = mesh.size(Axis::kPipe);
  assert(std::ssize(stage_bounds) == stages + 1);
  const bool joint = model.joint_text();
  const auto [batch, text_tokens] = ShareOfRows(pass, mesh.size(Axis::kCfg), at.cfg);
  const absl::StatusOr<TokenLayout> tokens = TokenLayout::Create({.image = pass.image_tokens,
                                                                  .text = joint ? text_tokens : 0,
                                                                  .ring = mesh.size(Axis::kRing),
                                                                  .ulysses = mesh.size(Axis::kUlysses)});
  assert(tokens.ok());
  ExchangedBytes bytes;
  // Predictions have at least fp32.
  if (at.pipe == 0)
    bytes.cfg = batch * pass.image_tokens * model.prediction_features * std::max<int64_t>(4, pass.element_bytes) *
                (mesh.size(Axis::kCfg) - 1);
  if (batch == 0) return bytes;

  const int64_t row_bytes = batch * pass.element_bytes;
  const RankOfPass own(mesh, rank, *tokens, row_bytes);
  const int64_t image_tokens = own.Own(TokenRows::kImage);
  const int64_t local_width = model.width / mesh.size(Axis::kTensor);
  const auto stage_of = [&](int block) {
    return static_cast<int>(std::ranges::upper_bound(stage_bounds, block) - stage_bounds.begin()) - 1;
  };
  for (int b = stage_bounds[at.pipe]; b < stage_bounds[at.pipe + 1]; ++b) {
    if (std::ranges::binary_search(pass.skipped_blocks, b)) continue;
    const BlockExchange& block = model.blocks[static_cast<size_t>(b)];
    for (const AttentionRows& attention : Attentions(block)) {
      bytes.ulysses += own.Ulysses(attention, local_width);
      bytes.ring += own.Ring(attention, local_width);
    }
    for (const TokenRows product : RowProducts(block)) {
      bytes.tensor += own.Tensor(product, batch, model.width, pass.element_bytes);
    }
  }

  const int64_t result_bytes = image_tokens * model.output_features * row_bytes;
  if (at.pipe == 0) bytes.sequence = result_bytes * (tokens->group_size() - 1);
  if (stages == 1) return bytes;
  if (at.pipe + 1 < stages) {
    bytes.pipe += own.Own(kAll) * model.width * row_bytes;
  } else {
    bytes.pipe += result_bytes;
  }
  for (const LongSkip& skip : model.long_skips) {
    if (stage_of(skip.from) == at.pipe && stage_of(skip.to) != at.pipe) {
      bytes.pipe += image_tokens * model.width * row_bytes;
    }
  }
  return bytes;
}

absl::Status CheckRules(const ExchangeModel& model) {
  for (const LongSkip& skip : model.long_skips) {
    if (skip.from >= skip.to || static_cast<size_t>(skip.to) >= model.blocks.size()) {
      return base::ErrorOfField("long_skips", absl::StrCat(" has one from block ", skip.from, " to block ", skip.to,
                                                           " of ", model.blocks.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::parallel

#include "server/workers/layout_figures.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/workers/layout_choice.h"

namespace tessera {
namespace {

// With the bounds on a transformer's shape that the control protocol has, sums of bytes fit into 63 bits.
constexpr int64_t kMaxImageTokens = int64_t{1} << 24;

// Guidance branches of a request without options. A model that reads a true CFG scale has its guidance built in.
int64_t DefaultRows(const ModelDescription& model) {
  const bool built_in = std::ranges::find(model.options, prompt_option::kTrueCfgScale) != model.options.end();
  return !built_in && model.default_guidance_scale > 1 ? 2 : 1;
}

}  // namespace

absl::StatusOr<ForwardPass> DefaultPass(const ModelDescription& model, int64_t height, int64_t width, Dtype dtype) {
  const TransformerShape& shape = model.transformer;
  if (!shape.known()) return absl::FailedPreconditionError("the shape of the model's transformer is not known");
  const int64_t rows = height / shape.token_side, columns = width / shape.token_side;
  if (rows < 1 || columns < 1 || rows > kMaxImageTokens / columns) {
    return absl::InvalidArgumentError(absl::StrCat("size is ", width, "x", height, "; it must be a size of 1 to ",
                                                   kMaxImageTokens, " tokens of ", shape.token_side, "x",
                                                   shape.token_side, " pixels"));
  }
  return ForwardPass{.image_tokens = rows * columns,
                     .text_tokens = std::vector<int64_t>(static_cast<size_t>(DefaultRows(model)), shape.text_tokens),
                     .element_bytes = ElementBytes(dtype),
                     .skipped_blocks = {}};
}

absl::StatusOr<SentBytes> BytesSent(const Layout& layout, const TransformerShape& transformer,
                                    const ForwardPass& pass) {
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(layout.mesh, layout.ranks()));
  ASSIGN_OR_RETURN(const std::vector<int> bounds, BalanceStages(transformer.block_flops, layout.mesh.pipe));
  SentBytes sent;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const ExchangedBytes bytes = PassBytes(transformer.exchange, mesh, bounds, rank, pass);
    if (rank == 0 || bytes.total() < sent.least.total()) sent.least = bytes;
    if (rank == 0 || bytes.total() > sent.most.total()) sent.most = bytes;
  }
  return sent;
}

RankWeights WeightsOf(const Layout& layout, const ModelDescription& model, Dtype dtype) {
  ModelDescription of_others = model;
  std::erase_if(of_others.components,
                [](const ModelComponent& component) { return component.role == ComponentRole::kTextEncoder; });
  return {.first = WeightBytes(layout, LayoutModelOf(model, dtype)),
          .others = WeightBytes(layout, LayoutModelOf(of_others, dtype))};
}

}  // namespace tessera

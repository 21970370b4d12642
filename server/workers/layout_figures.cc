#include "server/workers/layout_figures.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"
#include "control/parameters/placement.h"
#include "server/workers/layout_choice.h"

namespace tessera::server {
namespace {

// Together with the control protocol's bounds on a transformer's shape, this keeps sums of bytes below 2^63.
constexpr int64_t kMaxImageTokens = int64_t{1} << 24;

}  // namespace

absl::StatusOr<parallel::ForwardPass> DefaultPass(const control::ModelDescription& model, int64_t height, int64_t width,
                                                  control::Dtype dtype) {
  const control::TransformerShape& shape = model.transformer;
  if (!shape.known()) return absl::FailedPreconditionError("the shape of the model's transformer is not known");
  const int64_t side = model.cost.token_side, most = side * kMaxImageTokens;
  const int64_t tokens =
      height < 0 || width < 0 || height > most || width > most ? 0 : control::ImageTokens(model.cost, {height, width});
  if (tokens < 1 || tokens > kMaxImageTokens) {
    return absl::InvalidArgumentError(absl::StrCat("size is ", width, "x", height, "; it must be a size of 1 to ",
                                                   kMaxImageTokens, " tokens of ", side, "x", side, " pixels"));
  }
  const control::ImageWork work = control::DefaultWork(model);
  return parallel::ForwardPass{.image_tokens = tokens,
                               .text_tokens = std::vector<int64_t>(static_cast<size_t>(work.rows), work.text_tokens),
                               .element_bytes = control::ElementBytes(dtype),
                               .skipped_blocks = {}};
}

absl::StatusOr<SentBytes> BytesSent(const parallel::Layout& layout, const control::TransformerShape& transformer,
                                    const parallel::ForwardPass& pass) {
  ASSIGN_OR_RETURN(const parallel::Mesh mesh, parallel::Mesh::Create(layout.mesh, layout.ranks()));
  ASSIGN_OR_RETURN(const std::vector<int> bounds, parallel::BalanceStages(transformer.block_flops, layout.mesh.pipe));
  SentBytes sent;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const parallel::ExchangedBytes bytes = parallel::PassBytes(transformer.exchange, mesh, bounds, rank, pass);
    if (rank == 0 || bytes.total() < sent.least.total()) sent.least = bytes;
    if (rank == 0 || bytes.total() > sent.most.total()) sent.most = bytes;
  }
  return sent;
}

RankWeights WeightsOf(const parallel::Layout& layout, const control::ModelDescription& model, control::Dtype dtype) {
  control::ModelDescription of_others = model;
  std::erase_if(of_others.components, [](const control::ModelComponent& component) {
    return component.role == control::ComponentRole::kTextEncoder;
  });
  return {.first = WeightBytes(layout, LayoutModelOf(model, dtype)),
          .others = WeightBytes(layout, LayoutModelOf(of_others, dtype))};
}

}  // namespace tessera::server

#include "server/planning/layout_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/macros/status_macros.h"
#include "control/host/device.h"
#include "control/model/group_share.h"
#include "control/model/model_description.h"
#include "parallel/plan/mesh.h"
#include "parallel/plan/stage_balance.h"
#include "server/workers/layout_choice.h"

namespace tessera::server {
namespace {

using parallel::Axis;
using parallel::BlockKind;

// A value that a block computes is written once and read once.
constexpr double kPassesOfMemory = 2;
constexpr double kOrderings = 2;
// Rows and columns of a result that a processor computes at a time.
constexpr double kTile = 128;
// Convolutions reach half the rate of matrix products.
constexpr double kConvolutionShare = 0.5;
// Memory of a process with CUDA, cuBLAS and NCCL on a device.
constexpr double kProcessBytes = 1e9;

double CeilDivide(double value, double parts) { return std::ceil(value / parts); }

// Numbers of exchanges of each kind in all blocks of a pass. Each has a latency that does not depend on its bytes, and
// they follow one another.
struct Exchanges {
  double ulysses = 0, ring = 0, tensor = 0;
};

Exchanges CountExchanges(const control::TransformerShape& shape, const parallel::MeshShape& mesh) {
  Exchanges count;
  for (const parallel::BlockExchange& block : shape.exchange.blocks) {
    const int attentions = block.second_attention ? 2 : 1;
    if (mesh.ulysses > 1) count.ulysses += 2 * attentions;
    count.ring += attentions * (mesh.ring - 1);
    if (mesh.tensor == 1) continue;
    static constexpr int kSums[] = {2, 3, 4, 1};  // by kind: image, cross, joint, fused
    count.tensor += kSums[static_cast<size_t>(block.kind)] + (block.second_attention ? 1 : 0);
  }
  return count;
}

// Times for one pass of the rows of a cfg rank through all stages.
struct PassTime {
  double compute = 0;    // sum over all stages
  double largest = 0;    // share of the stage that computes most
  double inside = 0;     // exchanges inside stages that are not overlapped, sum over all stages
  double hop = 0;        // transfer from one stage to the next
  double result = 0;     // transfer from the last stage to the first
  double once = 0;       // gathering tokens and branches
  double attention = 0;  // part of compute
};

// `everybody`: each of the `ranks` sends to all others at once, over the path that they may share. Neighbours on a ring
// of shifts or sums do not contend for it.
double LinkSeconds(const LinkRate& link, int ranks, bool everybody, double bytes, double exchanges) {
  if (bytes == 0 && exchanges == 0) return 0;
  const double rate = link.bytes_per_second * (link.shared && everybody && ranks > 2 ? 2.0 / ranks : 1);
  return bytes / rate + exchanges * link.seconds;
}

struct Given {
  const parallel::Layout& layout;
  const control::ModelDescription& model;
  const Machine& machine;
  const parallel::ForwardPass& pass;
};

// Returns the slowdown of a product or attention whose result is cut into `tiles`, when each processor computes one
// tile at a time: its time divided by the time without idle processors.
double Waves(double tiles, int processors) {
  if (processors == 0 || tiles <= 0) return 1;
  return CeilDivide(tiles, processors) * processors / tiles;
}

// Returns the slowdown of a block's products on this many rows: queries, keys, values and the output projection have
// `width` columns each; the MLP's first product has four times as many, its second has `width` columns and four times
// the depth.
double ProductWaves(double rows, double width, int processors) {
  const double high = CeilDivide(rows, kTile), narrow = Waves(high * CeilDivide(width, kTile), processors);
  return (8 * narrow + 4 * Waves(high * CeilDivide(4 * width, kTile), processors)) / 12;
}

// The whole image passes in `patches` parts.
void AddCompute(const Given& given, int patches, PassTime& time) {
  const auto& [layout, model, machine, pass] = given;
  const parallel::MeshShape& mesh = layout.mesh;
  const double rows = CeilDivide(static_cast<double>(pass.text_tokens.size()), mesh.cfg);
  const double image = static_cast<double>(pass.image_tokens), element = static_cast<double>(pass.element_bytes);
  const double width = static_cast<double>(model.transformer.exchange.width);
  const double blocks = static_cast<double>(model.transformer.exchange.blocks.size());
  const double sequence = mesh.ring * mesh.ulysses;
  const double share = CeilDivide(image, sequence) / image / mesh.tensor * rows;
  const double text = model.cost.joint_text ? static_cast<double>(pass.text_tokens.front()) : 0;
  const double tokens = rows * (CeilDivide(image, sequence) + CeilDivide(text, sequence));
  const parallel::TokenFlops& flops = model.cost.flops;
  const double of_products = flops.Products(pass.image_tokens, pass.text_tokens.front());
  const double of_attention = flops.Attention(pass.image_tokens, pass.text_tokens.front());

  const double tiles = rows * CeilDivide(std::max(model.heads, 1), mesh.ulysses * mesh.tensor) *
                       CeilDivide((image + text) / mesh.ring / patches, kTile);
  time.attention = of_attention * share / machine.attention_flops * Waves(tiles, machine.processors);
  const double weights =
      static_cast<double>(control::ParametersOf(model, control::ComponentRole::kTransformer)) * element / mesh.tensor;
  const double reading = weights / machine.memory_bytes_second * patches;
  const double products = std::max(of_products * share / machine.product_flops *
                                       ProductWaves(tokens / patches, width / mesh.tensor, machine.processors),
                                   reading);
  const double activations = tokens * model.cost.values_per_token * kPassesOfMemory * element * blocks / mesh.tensor;
  const double device = products + time.attention + activations / machine.memory_bytes_second;
  time.compute = std::max(device, blocks * machine.block_seconds * patches);
}

double LargestShare(const control::TransformerShape& shape, std::span<const int> bounds) {
  double all = 0, largest = 0;
  for (size_t stage = 0; stage + 1 < bounds.size(); ++stage) {
    double cost = 0;
    for (int b = bounds[stage]; b < bounds[stage + 1]; ++b) cost += shape.block_flops[static_cast<size_t>(b)];
    all += cost;
    largest = std::max(largest, cost);
  }
  return all > 0 ? largest / all : 1.0 / static_cast<double>(bounds.size() - 1);
}

absl::StatusOr<PassTime> TimePass(const Given& given, int patches) {
  const auto& [layout, model, machine, pass] = given;
  const parallel::MeshShape& shape = layout.mesh;
  const int ranks = layout.ranks();
  ASSIGN_OR_RETURN(const parallel::Mesh mesh, parallel::Mesh::Create(shape, ranks));
  ASSIGN_OR_RETURN(const std::vector<int> bounds, parallel::BalanceStages(model.transformer.block_flops, shape.pipe));
  PassTime time;
  AddCompute(given, patches, time);
  time.largest = LargestShare(model.transformer, bounds);

  double ulysses = 0, tensor = 0, ring = 0, state = 0;
  parallel::ExchangedBytes first, last;
  for (int stage = 0; stage < shape.pipe; ++stage) {
    parallel::MeshCoords coords;
    coords.pipe = stage;
    const parallel::ExchangedBytes bytes =
        parallel::PassBytes(model.transformer.exchange, mesh, bounds, mesh.RankOf(coords), pass);
    ulysses += static_cast<double>(bytes.ulysses);
    tensor += static_cast<double>(bytes.tensor);
    ring += static_cast<double>(bytes.ring);
    if (stage + 1 < shape.pipe) state = std::max(state, static_cast<double>(bytes.pipe));
    if (stage == 0) first = bytes;
    last = bytes;
  }
  const Exchanges count = CountExchanges(model.transformer, shape);
  const auto seconds = [&](double bytes, double exchanges) {
    return LinkSeconds(machine.link, ranks, /*everybody=*/false, bytes, exchanges);
  };
  LinkRate sums = machine.link;
  if (sums.sum_bytes_per_second > 0) sums.bytes_per_second = sums.sum_bytes_per_second;
  time.inside = LinkSeconds(machine.link, ranks, /*everybody=*/true, ulysses, count.ulysses) +
                LinkSeconds(sums, ranks, /*everybody=*/false, tensor, count.tensor);
  // Data of an all-to-all is first put in the order of the ranks, and afterwards in the order of tokens.
  time.inside += kOrderings * kPassesOfMemory * ulysses * shape.ulysses / std::max(1, shape.ulysses - 1) /
                 machine.memory_bytes_second;
  if (shape.ring > 1) {
    // The next keys and values are transferred while attention reads the current ones.
    const double overlapped = machine.link.hidden ? time.attention * (shape.ring - 1) / shape.ring : 0;
    time.inside += std::max(count.ring * machine.link.seconds, seconds(ring, count.ring) - overlapped);
  }
  if (shape.pipe > 1) {
    time.hop = seconds(state, 1);
    time.result = seconds(static_cast<double>(last.pipe), 1);
  }
  if (shape.ring * shape.ulysses > 1) time.once += seconds(static_cast<double>(first.sequence), 1);
  if (shape.cfg > 1) time.once += seconds(static_cast<double>(first.cfg), 1);
  return time;
}

control::ImageWork WorkOf(const PlannedImage& image, const parallel::ForwardPass& pass) {
  return {.size = {.height = image.height, .width = image.width},
          .text_tokens = pass.text_tokens.front(),
          .rows = std::ssize(pass.text_tokens)};
}

}  // namespace

absl::StatusOr<parallel::ForwardPass> PassOf(const control::ModelDescription& model, const PlannedImage& work) {
  ASSIGN_OR_RETURN(parallel::ForwardPass pass, DefaultPass(model, work.height, work.width, work.dtype));
  if (work.text_tokens.has_value()) std::ranges::fill(pass.text_tokens, *work.text_tokens);
  return pass;
}

absl::StatusOr<LayoutTime> TimeOf(const parallel::Layout& layout, const control::ModelDescription& model,
                                  const PlannedImage& work, const Machine& machine) {
  ASSIGN_OR_RETURN(const parallel::ForwardPass pass, PassOf(model, work));
  const int ranks = layout.ranks();
  // If whole images pass through the stages, only one stage computes at a time.
  const Machine of_whole = machine.For(ranks, ranks / layout.mesh.pipe), of_patches = machine.For(ranks, ranks);
  const Machine of_one = machine.For(ranks, 1);
  ASSIGN_OR_RETURN(const PassTime once, TimePass({layout, model, of_whole, pass}, /*patches=*/1));
  const int stages = layout.mesh.pipe, patches = layout.patches;
  const double whole = once.compute + once.inside + (stages - 1) * once.hop + once.result + once.once;
  LayoutTime time;
  time.step = whole;
  time.exchange = whole - once.compute;
  int whole_steps = work.steps;
  if (!layout.lossless()) {
    whole_steps = std::min(work.steps, *layout.warmup);
    ASSIGN_OR_RETURN(const PassTime cut, TimePass({layout, model, of_patches, pass}, patches));
    // A slot is one patch in the stage that computes most. A stage is busy for `patches` slots of a step, and the first
    // patch of the next step waits for its prediction.
    const double slot = (cut.compute + cut.inside) * cut.largest / patches + std::max(cut.hop, cut.result) / patches +
                        of_patches.link.seconds;
    const int slots = std::max(patches, stages);
    time.step = slot * slots + cut.once;
    time.exchange = time.step - slots * cut.compute * cut.largest / patches;
    time.denoising = (stages - 1) * slot;
  }
  time.denoising += whole_steps * whole + (work.steps - whole_steps) * time.step;
  const control::ImageWork image = WorkOf(work, pass);
  time.prompt = control::EncodeFlops(model.cost, image) / of_one.product_flops;
  if (!work.decodes) return time;
  time.decoding = control::DecodeFlops(model.cost, image) /
                  ((work.splits_decoding ? of_patches : of_one).product_flops * kConvolutionShare) /
                  (work.splits_decoding ? ranks : 1);
  return time;
}

absl::StatusOr<uint64_t> MemoryOf(const parallel::Layout& layout, const control::ModelDescription& model,
                                  const PlannedImage& work) {
  ASSIGN_OR_RETURN(const parallel::ForwardPass pass, PassOf(model, work));
  const parallel::MeshShape& mesh = layout.mesh;
  double bytes = static_cast<double>(WeightsOf(layout, model, work.dtype).first) +
                 control::PeakBytes(model.cost, WorkOf(work, pass), /*images=*/1,
                                    control::ShareOf(mesh, control::DeviceKind::kCuda, work.dtype)) +
                 kProcessBytes;
  if (!layout.lossless()) {
    // Keys and values of all tokens and heads of the rank, in each block of its stage.
    const double tokens = CeilDivide(static_cast<double>(pass.image_tokens + pass.text_tokens.front()), mesh.ring);
    bytes += 2 * tokens * CeilDivide(static_cast<double>(pass.text_tokens.size()), mesh.cfg) *
             static_cast<double>(model.transformer.exchange.width * pass.element_bytes) / (mesh.tensor * mesh.ulysses) *
             CeilDivide(static_cast<double>(model.blocks), mesh.pipe);
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace tessera::server

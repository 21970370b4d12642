#include "control/model/model_cost.h"

#include <algorithm>
#include <cmath>

#include "control/host/device.h"
#include "control/model/group_share.h"
#include "control/model/step_memory.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/placement.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"

namespace tessera::control {
namespace {

double CeilDivide(int64_t count, int64_t parts) { return static_cast<double>((count + parts - 1) / parts); }

double Pixels(const ImageWork& work) {
  return static_cast<double>(work.size.height) * static_cast<double>(work.size.width);
}

// Rows of one image on the rank of the cfg axis that has most.
double RowsOfRank(const ImageWork& work, const GroupShare& share) { return CeilDivide(work.rows, share.cfg); }

}  // namespace

ImageSize NearestSize(const StandardSizes& standard, ImageSize requested) {
  if (standard.sizes.empty()) return requested;
  const double height = static_cast<double>(requested.height), width = static_cast<double>(requested.width);
  const double ratio = standard.ratio_is_width_by_height ? width / height : height / width;
  const auto distance = [ratio](const StandardSize& size) { return std::abs(size.ratio - ratio); };
  const double nearest = std::ranges::min_element(standard.sizes, {}, distance)->ratio;
  const StandardSize* best = nullptr;
  int64_t least = 0;
  for (const StandardSize& size : standard.sizes) {
    const int64_t apart = std::abs(int64_t{size.height} * size.width - requested.height * requested.width);
    if (size.ratio != nearest || (best != nullptr && apart >= least)) continue;
    best = &size;
    least = apart;
  }
  return {.height = best->height, .width = best->width};
}

std::vector<double> SetTransformer(const parallel::ExchangeModel& transformer, double mlp_ratio, ImageSize size,
                                   ModelCost& cost) {
  cost.joint_text = transformer.joint_text();
  cost.blocks = static_cast<int32_t>(transformer.blocks.size());
  cost.values_per_token = static_cast<double>(kLiveWidths * transformer.width);
  cost.values_per_block = static_cast<double>(kModulationWidths * kModulatedSteps * transformer.width);
  cost.flops = {};
  std::vector<double> block_flops;
  for (int i = 0; i < cost.blocks; ++i) {
    const parallel::BlockExchange& block = transformer.blocks[static_cast<size_t>(i)];
    const bool skip =
        std::ranges::find(transformer.long_skips, i, &parallel::LongSkip::to) != transformer.long_skips.end();
    const parallel::TokenFlops flops = parallel::FlopsOf({.kind = block.kind,
                                                          .width = transformer.width,
                                                          .mlp_ratio = mlp_ratio,
                                                          .second_attention = block.second_attention,
                                                          .long_skip = skip});
    block_flops.push_back(flops.Total(ImageTokens(cost, size), cost.text_tokens));
    cost.flops += flops;
  }
  return block_flops;
}

int64_t ImageTokens(const ModelCost& cost, ImageSize size) {
  return (size.height / cost.token_side) * (size.width / cost.token_side);
}

bool IsGuided(const ModelCost& cost, const JobParameters& job) {
  if (!cost.guidance_is_input) return job.guidance_scale > cost.guided_above;
  return job.options.true_cfg_scale > 1 && job.negative_prompt.has_value();
}

ImageWork WorkOf(const ModelCost& cost, const JobParameters& job) {
  const ImageSize requested = {.height = job.height, .width = job.width};
  const bool guided = IsGuided(cost, job);
  const int64_t length = job.max_sequence_length;
  const ImageSize size = job.resolution_binning ? NearestSize(cost.sizes, requested) : requested;
  int64_t picture_tokens = 0;
  if (cost.references != ReferenceFit::kNone) {
    for (const ImageSize& encoded : EncodedSizes(cost, job, size)) picture_tokens += ImageTokens(cost, encoded);
    for (const PictureUse& picture : job.images) {
      picture_tokens += PromptTokensOf(cost.references, {.width = picture.width, .height = picture.height});
    }
  }
  return {.size = size,
          .text_tokens = (length > 0 ? cost.fixed_text_tokens + length : cost.text_tokens) + picture_tokens,
          .rows = 1 + (guided ? 1 : 0) + (guided && !job.options.skip_layers.layers.empty() ? 1 : 0)};
}

std::vector<ImageSize> EncodedSizes(const ModelCost& cost, const JobParameters& job, ImageSize image) {
  std::vector<ImageSize> sizes;
  for (const PictureUse& picture : job.images) {
    ImageSize size = image;
    // With a mask the first picture is also the one that the image begins from.
    if (cost.references != ReferenceFit::kNone && (!sizes.empty() || job.mask.empty())) {
      const absl::StatusOr<ReferenceSize> fitted =
          SizeOfReference(cost.references, {.width = picture.width, .height = picture.height});
      if (fitted.ok()) size = {.height = fitted->read.height, .width = fitted->read.width};
    }
    sizes.push_back(size);
  }
  return sizes;
}

GroupShare ShareOf(const parallel::MeshShape& mesh, DeviceKind device, Dtype dtype) {
  return {.sequence = int64_t{mesh.ring} * mesh.ulysses,
          .tensor = mesh.tensor,
          .cfg = mesh.cfg,
          .pipe = mesh.pipe,
          .images_share_passes = ImagesSharePasses(device),
          .most_band_bytes = device == DeviceKind::kCpu ? static_cast<double>(kBandTemporaries * kHostBandBytes) : 0,
          .element_bytes = ElementBytes(dtype)};
}

double EncodeFlops(const ModelCost& cost, const ImageWork& work) {
  return cost.encode_flops_per_token * static_cast<double>(work.rows * work.text_tokens);
}

double StepFlops(const ModelCost& cost, const ImageWork& work) {
  return static_cast<double>(work.rows) * cost.flops.Total(ImageTokens(cost, work.size), work.text_tokens);
}

double DecodeFlops(const ModelCost& cost, const ImageWork& work) { return Pixels(work) * cost.decode_flops_per_pixel; }

double ActivationBytes(const ModelCost& cost, const ImageWork& work, int64_t images, const GroupShare& share) {
  // Tensor shards divide the wide activations. Text that is not joint is on every rank of the sequence.
  const double tokens = CeilDivide(ImageTokens(cost, work.size), share.sequence) +
                        CeilDivide(work.text_tokens, cost.joint_text ? share.sequence : 1);
  return static_cast<double>((share.images_share_passes ? images : 1) * share.element_bytes) * RowsOfRank(work, share) *
         tokens * cost.values_per_token / static_cast<double>(share.tensor);
}

double StepBytes(const ModelCost& cost, const ImageWork& work, int64_t images, const GroupShare& share) {
  const double modulations = static_cast<double>(images) * RowsOfRank(work, share) *
                             CeilDivide(cost.blocks, share.pipe) * cost.values_per_block *
                             static_cast<double>(share.element_bytes);
  return ActivationBytes(cost, work, images, share) + modulations;
}

double DecodeBytes(const ModelCost& cost, const ImageWork& work, const GroupShare& share) {
  // One image is decoded at a time, in bands over all ranks.
  const double ranks = static_cast<double>(share.sequence * share.tensor * share.cfg * share.pipe);
  const double decode = Pixels(work) * cost.decode_values_per_pixel * static_cast<double>(share.element_bytes) / ranks;
  return decode + std::min(decode, share.most_band_bytes);
}

double PeakBytes(const ModelCost& cost, const ImageWork& work, int64_t images, const GroupShare& share) {
  return std::max(StepBytes(cost, work, images, share), DecodeBytes(cost, work, share));
}

}  // namespace tessera::control

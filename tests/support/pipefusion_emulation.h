// Emulates PipeFusion without a pipeline. One process runs the patches of every step in order through all blocks, and
// keeps the previous step's keys and values in one tensor per attention. It shares only the plan's arithmetic (which
// tokens form a patch), the rows of guidance and the model with the code it is compared with.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "models/precision.h"
#include "models/token_grid.h"
#include "parallel/plan/token_layout.h"
#include "parallel/qkv.h"
#include "runtime/denoising/guided_rows.h"

namespace tessera {

// Attends to the text rows and all image rows. The pass updates the image rows in `span`; the others keep their last
// values.
class EmulatedAttention final : public parallel::AttentionContext {
 public:
  explicit EmulatedAttention(int64_t image_tokens) : image_tokens_(image_tokens) {}

  void BeginPass(parallel::TokenSpan span) { span_ = span; }

  at::Tensor Attend(int layer, const parallel::AttentionInput& input) override {
    const parallel::Qkv qkv = parallel::QkvOf(input);
    const at::Tensor k = Newest(k_[layer], qkv.k, qkv.keys), v = Newest(v_[layer], qkv.v, qkv.keys);
    return kernels::Attention(qkv.q, k, v, std::nullopt, qkv.scale);
  }

 private:
  struct Kept {
    at::Tensor text, image;
  };

  at::Tensor Newest(Kept& kept, const at::Tensor& rows, parallel::TokenRows order) const {
    const int64_t image = span_.count(), text = rows.size(1) - image;
    const bool text_first = order == parallel::TokenRows::kTextThenImage;
    if (!kept.image.defined())
      kept.image = at::zeros({rows.size(0), image_tokens_, rows.size(2), rows.size(3)}, rows.options());
    kept.image.narrow(1, span_.begin, image).copy_(rows.narrow(1, text_first ? text : 0, image));
    if (text > 0) kept.text = rows.narrow(1, text_first ? 0 : image, text).clone();
    return kept.text.defined() ? at::cat({kept.text, kept.image}, 1) : kept.image.clone();
  }

  const int64_t image_tokens_;
  parallel::TokenSpan span_;
  std::map<int, Kept> k_, v_;
};

// Stacks text, mask and extras of these rows. Text is padded to the longest of them, with a mask if there is padding.
inline models::TransformerInput StackConditioning(std::span<runtime::DenoiseJob* const> batch,
                                                  std::span<const runtime::GuidedRow> rows,
                                                  at::ScalarType accumulation) {
  const auto conditioning = [&](const runtime::GuidedRow& row) -> const models::ConditioningRow& {
    return batch[row.job]->guidance.branches[row.branch].row;
  };
  models::TransformerInput input;
  for (size_t e = 0; e < conditioning(rows[0]).extras.size(); ++e) {
    std::vector<at::Tensor> values;
    for (const runtime::GuidedRow& row : rows) values.push_back(conditioning(row).extras[e]);
    input.extras.push_back(at::stack(values));
  }
  if (!conditioning(rows[0]).text.defined()) return input;
  int64_t longest = 0, shortest = conditioning(rows[0]).text.size(0);
  for (const runtime::GuidedRow& row : rows) {
    longest = std::max(longest, conditioning(row).text.size(0));
    shortest = std::min(shortest, conditioning(row).text.size(0));
  }
  std::vector<at::Tensor> text, mask;
  for (const runtime::GuidedRow& row : rows) {
    const at::Tensor& tokens = conditioning(row).text;
    const int64_t count = tokens.size(0);
    text.push_back(at::constant_pad_nd(tokens, {0, 0, 0, longest - count}));
    mask.push_back(at::constant_pad_nd(at::ones({count}, tokens.options().dtype(accumulation)), {0, longest - count}));
  }
  input.text = at::stack(text);
  const runtime::DenoiseJob& first = *batch[rows[0].job];
  input.reference_grids = first.reference_grids;
  for (size_t r = 0; r < first.references.size(); ++r) {
    std::vector<at::Tensor> references;
    for (const runtime::GuidedRow& row : rows) references.push_back(batch[row.job]->references[r]);
    input.references.push_back(at::stack(references));
  }
  if (longest != shortest) input.text_mask = at::stack(mask);
  return input;
}

// Returns the latents [jobs, c, h, w] after the last step, for jobs that start and run together. Of the jobs, only the
// noise changes.
inline at::Tensor EmulatePipeFusion(const models::Family& family, std::span<runtime::DenoiseJob* const> batch,
                                    int patches, int warmup) {
  const models::Transformer& transformer = family.transformer();
  const models::LatentGeometry& geometry = batch[0]->geometry;
  const models::TokenGrid& grid = geometry.grid;
  const int64_t side = geometry.height / grid.height;
  const std::vector<runtime::RowGroup> groups = runtime::GroupRows(batch, family);
  const at::ScalarType accumulation = models::AccumulationType(family.dtype());

  std::vector<models::TransformerInput> inputs;
  std::vector<EmulatedAttention> attentions(groups.size(), EmulatedAttention(grid.count()));
  int64_t longest_text = 0;
  for (const runtime::RowGroup& group : groups) {
    inputs.push_back(StackConditioning(batch, group.rows, accumulation));
    inputs.back().grid = grid;
    if (transformer.joint_text()) {
      longest_text =
          std::max(longest_text, inputs.back().text.size(1) + models::TokensOf(inputs.back().reference_grids));
    }
  }
  const parallel::TokenLayout cut =
      *parallel::TokenLayout::Create({.image = grid.count(), .patches = patches, .text_work = longest_text});

  // Jobs that compute something over the whole image advance only after the step's last prediction.
  std::vector<bool> at_once;
  for (const runtime::DenoiseJob* job : batch) {
    at_once.push_back(job->guidance.rescale > 0 || job->guidance.norm_limit > 0 || job->sampler->reads_whole_image());
  }
  // A run of tokens as an image that is one token high.
  const auto run = [&](const at::Tensor& whole, parallel::TokenSpan span) {
    const at::Tensor tokens = models::Padded(models::Patchify(whole, side), grid.count());
    return models::Unpack(tokens.narrow(1, span.begin, span.count()), {1, span.count()}, side);
  };
  std::vector<std::vector<std::unique_ptr<runtime::Sampler>>> samplers(batch.size());  // by job and patch
  std::vector<std::vector<at::Tensor>> latents(batch.size());
  for (size_t j = 0; j < batch.size(); ++j) {
    for (int patch = 0; patch < (at_once[j] ? 1 : patches); ++patch) {
      samplers[j].push_back(batch[j]->sampler->Clone());
      latents[j].push_back(
          run(batch[j]->latents.unsqueeze(0), at_once[j] ? parallel::TokenSpan{0, grid.count()} : cut.Patch(patch)));
    }
  }

  parallel::SingleRank one;
  std::vector<at::Tensor> noise(batch.size());
  std::vector<std::vector<at::Tensor>> of_step(groups.size());  // this step's predictions so far
  const auto unrun = [&](const at::Tensor& strip) {
    return models::Unpack(models::Patchify(strip, side).narrow(1, 0, grid.image()), grid, side);
  };
  // Blends a run of the job's latents after that step.
  const auto blend = [&](size_t j, at::Tensor& of_run, parallel::TokenSpan span, int step) {
    const std::optional<runtime::MaskBlend>& rule = batch[j]->blend;
    if (!rule) return;
    const auto part = [&](const at::Tensor& image) { return run(image, span); };
    const runtime::NoiseLevel level = batch[j]->sampler->level(step + 1);
    const at::Tensor noisy = part(rule->clean) * level.alpha + part(rule->noise) * level.sigma, mask = part(rule->mask);
    of_run = mask * of_run + (1 - mask) * noisy;
  };
  const auto pass = [&](parallel::PatchRange range, int step) {
    const parallel::TokenSpan span{cut.Patch(range.begin).begin, cut.Patch(range.end - 1).end};
    std::vector<at::Tensor> scaled;
    for (size_t j = 0; j < batch.size(); ++j) {
      std::vector<at::Tensor> parts;
      if (at_once[j]) {
        const at::Tensor whole = samplers[j][0]->ScaleInput(latents[j][0]);
        scaled.push_back(whole.narrow(3, span.begin * side, span.count() * side));
        continue;
      }
      for (int p = range.begin; p < range.end; ++p) parts.push_back(samplers[j][p]->ScaleInput(latents[j][p]));
      scaled.push_back(at::cat(parts, 3));
    }
    const at::Tensor tokens = family.ToPatches(at::cat(scaled)).to(family.dtype());
    std::vector<at::Tensor> predictions;
    for (size_t g = 0; g < groups.size(); ++g) {
      models::TransformerInput input = inputs[g];
      std::vector<at::Tensor> rows;
      std::vector<double> timesteps;
      for (const runtime::GuidedRow& row : groups[g].rows) {
        rows.push_back(tokens[static_cast<int64_t>(row.job)]);
        timesteps.push_back(batch[row.job]->sampler->schedule().timesteps[step]);
      }
      input.patches = at::stack(rows);
      input.span = span;
      input.timestep = at::tensor(timesteps, at::kDouble);
      if (transformer.joint_text() && range.begin > 0) {
        input.absent_text = input.text.size(1);
        input.text = input.text.narrow(1, 0, 0);
        input.references.clear();
        input.reference_grids.clear();
      }
      attentions[g].BeginPass(span);
      const parallel::ForwardContext context{.attention = attentions[g], .tensor = one, .world = one};
      const at::Tensor output = models::RunTransformer(transformer, input, context, groups[g].skipped_blocks);
      predictions.push_back(family.ToPrediction(
          output.to(accumulation),
          {.channels = geometry.channels, .height = side, .width = span.count() * side, .grid = {1, span.count()}}));
      if (range.begin == 0) of_step[g].clear();
      of_step[g].push_back(predictions[g]);
    }
    for (size_t j = 0; j < batch.size(); ++j) {
      if (at_once[j]) {
        if (range.end < patches) continue;
        std::vector<at::Tensor> whole;
        for (const std::vector<at::Tensor>& parts : of_step) whole.push_back(at::cat(parts, 3));
        std::vector<runtime::WeightedPrediction> guided = runtime::GuidedPredictions(batch, j, step, groups, whole);
        for (auto& [prediction, weight] : guided) prediction = unrun(prediction.unsqueeze(0));
        runtime::Sampler& sampler = *samplers[j][0];
        at::Tensor drawn;
        if (sampler.needs_noise()) {
          drawn =
              batch[j]->noise->ForStep(step, batch[j]->latents.sizes(), batch[j]->latents.scalar_type()).unsqueeze(0);
        }
        const at::Tensor moved = sampler.Step(unrun(latents[j][0]), guided, drawn);
        latents[j][0] = run(moved, {0, grid.count()});
        blend(j, latents[j][0], {0, grid.count()}, step);
        continue;
      }
      const std::vector<runtime::WeightedPrediction> guided =
          runtime::GuidedPredictions(batch, j, step, groups, predictions);
      const bool noisy = samplers[j][range.begin]->needs_noise();
      if (range.begin == 0 && noisy) {
        noise[j] = batch[j]->noise->ForStep(step, batch[j]->latents.sizes(), batch[j]->latents.scalar_type());
      }
      for (int p = range.begin; p < range.end; ++p) {
        const parallel::TokenSpan own = cut.Patch(p);
        std::vector<runtime::WeightedPrediction> part = guided;
        for (auto& [prediction, weight] : part) {
          prediction = prediction.unsqueeze(0).narrow(3, (own.begin - span.begin) * side, own.count() * side);
        }
        latents[j][p] =
            samplers[j][p]->Step(latents[j][p], part, noisy ? run(noise[j].unsqueeze(0), own) : at::Tensor());
        blend(j, latents[j][p], own, step);
      }
    }
  };
  const int first = batch[0]->sampler->first_step();
  for (int step = first; step < batch[0]->sampler->num_steps(); ++step) {
    if (step - first < warmup) {
      pass({0, patches}, step);
    } else {
      for (int patch = 0; patch < patches; ++patch) pass({patch, patch + 1}, step);
    }
  }
  std::vector<at::Tensor> result;
  for (size_t j = 0; j < batch.size(); ++j) {
    result.push_back(unrun(at::cat(latents[j], 3)));
  }
  return at::cat(result);
}

}  // namespace tessera

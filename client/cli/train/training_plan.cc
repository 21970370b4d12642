#include "client/cli/train/training_plan.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <utility>

#include "client/cli/output/json_line.h"
#include "client/cli/output/text_reporter.h"
#include "control/model/model_description.h"
#include "parallel/plan/mesh.h"

namespace tessera::client {
namespace {

boost::json::value Known(double number) {
  if (number > 0) return number;
  return nullptr;
}

double Gib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

uint64_t SavedBySequenceParallel(control::TrainConfig config, const control::ModelDescription& model,
                                 const control::LargestSample& sample) {
  const auto activations = [&](bool sequence_parallel) {
    config.parallelism.sequence_parallel = sequence_parallel;
    return control::PredictMemory(config, model, sample).activations;
  };
  return activations(false) - activations(true);
}

}  // namespace

TrainingPlan PlanTraining(const control::TrainConfig& config, const control::ModelDescription& model,
                          const control::TrainingSet& set) {
  TrainingPlan plan;
  for (const control::Bucket& bucket : set.buckets) plan.images.push_back({.bucket = bucket});
  for (const control::TrainingSample& sample : set.samples) {
    TrainingPlan::Images& images = plan.images[static_cast<size_t>(sample.bucket)];
    ++images.samples;
    images.visits += sample.repeats;
  }
  const int64_t of_a_step = config.train.batch_size * config.train.gradient_accumulation_steps;
  int64_t visits = 0;
  for (const TrainingPlan::Images& images : plan.images) visits += images.visits;
  plan.steps_per_epoch = (visits + of_a_step - 1) / of_a_step;
  plan.ranks = parallel::NumRanks(config.parallelism.mesh());
  plan.images_of_a_rank = config.train.batch_size / config.parallelism.data;
  const auto waits =
      static_cast<double>(config.parallelism.pipe - 1);  // idle turns, of (micro-batches + idle turns) in total
  plan.stages_idle = waits / (waits + static_cast<double>(config.train.gradient_accumulation_steps));
  plan.largest = control::LargestSampleOf(set, model);
  plan.memory = control::PredictMemory(config, model, plan.largest);
  plan.sequence_parallel_saves = SavedBySequenceParallel(config, model, plan.largest);
  if (model.transformer.known()) {
    const control::ImageSize size = {.height = plan.largest.bucket.height, .width = plan.largest.bucket.width};
    const int64_t text_tokens = model.cost.text_tokens + plan.largest.control_tokens;
    const double forward = control::StepFlops(model.cost, {.size = size, .text_tokens = text_tokens});
    const int backward = config.network.type == control::NetworkType::kFull ? 2 : 1;
    plan.step_flops =
        forward * (1 + backward + (config.train.gradient_checkpointing ? 1 : 0)) * static_cast<double>(of_a_step);
    plan.rows = std::max<int64_t>(control::ImageTokens(model.cost, size) * plan.images_of_a_rank /
                                      (config.parallelism.ulysses * config.parallelism.ring),
                                  1);
    plan.width = model.transformer.exchange.width;
  }
  return plan;
}

void SetRate(double flops_per_second, TrainingPlan& plan) {
  plan.flops_per_second = flops_per_second;
  plan.step_seconds = flops_per_second > 0 ? plan.step_flops / flops_per_second / (1 - plan.stages_idle) : 0;
}

void PrintPlan(const TrainingPlan& plan, const control::TrainConfig& config, bool json) {
  const control::TrainingMemory& memory = plan.memory;
  if (json) {
    boost::json::array buckets;
    for (const TrainingPlan::Images& images : plan.images) {
      buckets.push_back({{"width", images.bucket.width},
                         {"height", images.bucket.height},
                         {"samples", images.samples},
                         {"visits", images.visits}});
    }
    PrintJsonLine({{"event", "plan"},
                   {"buckets", std::move(buckets)},
                   {"steps", config.train.steps},
                   {"steps_per_epoch", plan.steps_per_epoch},
                   {"ranks", plan.ranks},
                   {"images_of_a_rank", plan.images_of_a_rank},
                   {"stages_idle", plan.stages_idle},
                   {"step_flops", plan.step_flops},
                   {"flops_per_second", Known(plan.flops_per_second)},
                   {"step_seconds", Known(plan.step_seconds)},
                   {"run_seconds", Known(plan.step_seconds * static_cast<double>(config.train.steps))},
                   {"memory_bytes", memory.total()},
                   {"weight_bytes", memory.weights},
                   {"adapter_bytes", memory.adapter},
                   {"gradient_bytes", memory.gradients},
                   {"optimizer_bytes", memory.optimizer},
                   {"activation_bytes", memory.activations},
                   {"encoding_bytes", memory.encoding},
                   {"encoding_bytes_waiting", memory.encoding_waiting},
                   {"sequence_parallel_saves_bytes", plan.sequence_parallel_saves}});
    return;
  }
  for (const TrainingPlan::Images& images : plan.images) {
    std::printf("%-14s %lld images, %lld visits in an epoch\n", control::BucketText(images.bucket).c_str(),
                static_cast<long long>(images.samples), static_cast<long long>(images.visits));
  }
  std::printf("steps          %lld, of which %lld are an epoch\n", static_cast<long long>(config.train.steps),
              static_cast<long long>(plan.steps_per_epoch));
  std::printf("ranks          %lld, %lld images of a pass on each replica\n", static_cast<long long>(plan.ranks),
              static_cast<long long>(plan.images_of_a_rank));
  if (config.parallelism.pipe > 1) {
    std::printf("stages         %lld, each idle for %.0f %% of a step of %lld micro-batches\n",
                static_cast<long long>(config.parallelism.pipe), 100 * plan.stages_idle,
                static_cast<long long>(config.train.gradient_accumulation_steps));
  }
  if (plan.step_flops > 0) std::printf("a step         %.3g TFLOP over all ranks\n", plan.step_flops / 1e12);
  if (plan.step_seconds > 0) {
    std::printf(
        "time           at least %.3g s a step, %s for all steps: that of matrix products at %.3g GFLOP/s, as measured "
        "here, without communication, encoding, sampling and saving\n",
        plan.step_seconds, DurationText(plan.step_seconds * static_cast<double>(config.train.steps)).c_str(),
        plan.flops_per_second / 1e9);
  } else {
    std::printf("time           not known\n");
  }
  std::printf(
      "memory         %.2f GiB on the rank that needs most, at %s: weights %.2f, adapter %.2f, gradients %.2f, "
      "optimizer %.2f, activations %.2f\n",
      Gib(memory.total()), control::BucketText(plan.largest.bucket).c_str(), Gib(memory.weights), Gib(memory.adapter),
      Gib(memory.gradients), Gib(memory.optimizer), Gib(memory.activations));
  std::printf("encoding       %.2f GiB before the first step, %.2f GiB if text encoders wait in main memory\n",
              Gib(memory.encoding), Gib(memory.encoding_waiting));
  if (plan.sequence_parallel_saves > 0) {
    std::printf("activations    parallelism.sequence_parallel %s %.2f GiB of them\n",
                config.parallelism.sequence_parallel ? "saves" : "would save", Gib(plan.sequence_parallel_saves));
  }
}

}  // namespace tessera::client

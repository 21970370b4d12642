#include "client/cli/train/config_template.h"

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <charconv>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/byte_text.h"
#include "base/enum_names.h"
#include "control/training/model_training.h"

namespace tessera::client {
namespace {

constexpr size_t kCommentColumn = 44;

// JSON's texts are YAML's as well.
std::string Value(const std::string& text) { return boost::json::serialize(boost::json::string(text)); }
std::string Value(bool value) { return value ? "true" : "false"; }
std::string Value(int64_t value) { return absl::StrCat(value); }
std::string Value(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
}
template <base::NamedEnum Enum>
std::string Value(Enum value) {
  return base::EnumName(value);
}
template <typename Item>
std::string Value(const std::vector<Item>& items) {
  return absl::StrCat("[", absl::StrJoin(items, ", ", [](std::string* out, const Item& item) { *out += Value(item); }),
                      "]");
}

// Lines of YAML with the comments in one column.
class Lines {
 public:
  void Comment(const std::string& text) { absl::StrAppend(&text_, indent_, "# ", OneLine(text), "\n"); }
  void Blank() { text_ += '\n'; }
  void Section(const char* key) {
    absl::StrAppend(&text_, "\n", key, ":\n");
    indent_ = "  ";
  }
  void Mapping(const char* key) {
    absl::StrAppend(&text_, indent_, key, ":\n");
    indent_ += "  ";
  }
  void Indent(const char* indent) { indent_ = indent; }
  template <typename T>
  void operator()(const char* key, const T& value, const std::string& comment = "") {
    std::string line = absl::StrCat(indent_, first_of_item_ ? "- " : "", key, ": ", Value(value));
    if (std::exchange(first_of_item_, false)) indent_ += "  ";
    if (!comment.empty()) {
      if (line.size() < kCommentColumn) line.resize(kCommentColumn, ' ');
      absl::StrAppend(&line, "  # ", comment);
    }
    absl::StrAppend(&text_, line, "\n");
  }
  void BeginItem() { first_of_item_ = true; }
  template <base::NamedEnum Enum>
  static std::string Choices() {
    return absl::StrJoin(base::EnumNames<Enum>(), ", ");
  }
  std::string Take() { return std::move(text_); }

 private:
  // Names of files go into comments, and may hold any characters.
  static std::string OneLine(std::string text) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return text;
  }

  std::string text_;
  std::string indent_;
  bool first_of_item_ = false;
};

// "Predicted memory of a rank: 27.1 MiB (17.3 MiB of weights, …). …"
std::string MemoryText(const TemplateFacts& facts) {
  control::Bucket largest;
  for (const control::Bucket& bucket : facts.images.buckets) {
    if (int64_t{bucket.width} * bucket.height > int64_t{largest.width} * largest.height) largest = bucket;
  }
  const control::TrainingMemory memory = control::PredictMemory(facts.config, facts.model, largest);
  std::vector<std::string> parts;
  for (const auto& [what, bytes] : {std::pair<std::string, uint64_t>{"weights", memory.weights},
                                    {"adapter", memory.adapter},
                                    {"gradients", memory.gradients},
                                    {"optimizer state", memory.optimizer},
                                    {"activations at " + control::BucketText(largest), memory.activations}}) {
    if (bytes > 0) parts.push_back(absl::StrCat(base::ByteText(bytes), " of ", what));
  }
  return absl::StrCat("Predicted memory of a rank: ", base::ByteText(memory.total()), " (", absl::StrJoin(parts, ", "),
                      "). Text encoders and autoencoder come on top until everything is cached.");
}

void Head(const TemplateFacts& facts, Lines& lines) {
  const control::ModelDescription& model = facts.model;
  lines.Comment(absl::StrCat("Training of ", model.pipeline, " (family ", model.family, ", ", model.blocks, " blocks, ",
                             model.heads, " heads)."));
  lines.Comment(MemoryText(facts));
  lines.Comment("Keys may be left out, but for model, output and datasets.");
  lines.Blank();
  lines("model", facts.config.model, "folder, or name of a known model");
  lines("output", facts.config.output, "folder of checkpoints, samples and results");
  lines("seed", facts.config.seed, "of noise, timesteps, order and caption dropout");
  lines("trigger_word", facts.config.trigger_word, "in place of [trigger] in captions, else in front; empty: none");
}

void Images(const TemplateFacts& facts, Lines& lines) {
  std::map<int64_t, int64_t> in_bucket;
  for (const control::TrainingSample& sample : facts.images.samples) ++in_bucket[sample.bucket];
  lines.Section("datasets");
  lines.Comment(absl::StrCat("Found here: ", facts.images.samples.size(),
                             facts.images.samples.size() == 1 ? " image" : " images", ". Buckets:"));
  for (const auto& [bucket, count] : in_bucket) {
    const std::string size = control::BucketText(facts.images.buckets[static_cast<size_t>(bucket)]);
    lines.Comment(absl::StrCat("  ", size, "  ", count, count == 1 ? " image" : " images"));
  }
  for (const std::string& warning : facts.images.Warnings()) lines.Comment(absl::StrCat(warning, "."));
  for (const control::TrainDataset& dataset : facts.config.datasets) {
    lines.Indent("  ");
    lines.BeginItem();
    lines("folder_path", dataset.folder_path, "with metadata.jsonl, or captions beside the images");
    lines("caption_ext", dataset.caption_ext, "of the caption beside an image");
    lines("caption_dropout_rate", dataset.caption_dropout_rate, "share of visits with an empty caption");
    lines("resolution", dataset.resolution, "pixels; several: each image in each");
    lines("num_repeats", dataset.num_repeats, "visits of each image in an epoch");
    lines("is_reg", dataset.is_reg, "regularisation: captions without the trigger word");
    lines("bad_images", dataset.bad_images, Lines::Choices<control::BadImages>());
    lines("cache_latents_to_disk", dataset.cache_latents_to_disk, "encoded pictures are kept for the next start");
    lines("cache_text_embeddings", dataset.cache_text_embeddings, "and encoded captions");
  }
}

void Network(const TemplateFacts& facts, Lines& lines) {
  const control::TrainNetwork& network = facts.config.network;
  lines.Section("network");
  lines("type", network.type, Lines::Choices<control::NetworkType>() + ": an adapter, or all weights");
  lines("linear", network.linear, "rank of the adapter");
  lines("linear_alpha", network.linear_alpha, "its scale is linear_alpha / linear");
  lines("init", network.init, Lines::Choices<control::NetworkInit>());
  lines("target_modules", network.target_modules, "ends of the names of the modules that it changes");
  lines("from_scratch", network.from_scratch, "all weights begin as random numbers (full)");
}

void Procedure(const TemplateFacts& facts, Lines& lines) {
  const control::TrainProcedure& train = facts.config.train;
  lines.Section("train");
  lines("steps", train.steps);
  lines("batch_size", train.batch_size, "images of a pass, over all data ranks");
  lines("gradient_accumulation_steps", train.gradient_accumulation_steps, "passes of a step");
  lines("gradient_checkpointing", train.gradient_checkpointing, "less memory, about a third more time");
  lines("lr", train.lr);
  lines("lr_scheduler", train.lr_scheduler, Lines::Choices<control::LearningRateSchedule>());
  lines("lr_warmup_steps", train.lr_warmup_steps);
  lines("lr_decay_steps", train.lr_decay_steps, "at the end (warmup_stable_decay)");
  lines("low_discrepancy_timesteps", train.low_discrepancy_timesteps, "evenly over consecutive samples");
  lines("weighting_scheme", train.weighting_scheme, Lines::Choices<control::WeightingScheme>() + " (flow matching)");
  lines("logit_mean", train.logit_mean);
  lines("logit_std", train.logit_std);
  lines("mode_scale", train.mode_scale);
  lines("prediction_type", train.prediction_type,
        Lines::Choices<control::TrainedPrediction>() + " (scheduler: what the model's says)");
  lines("snr_gamma", train.snr_gamma, "min-SNR (epsilon and v prediction); 0: off");
  lines("guidance_scale", train.guidance_scale, "that a guidance-distilled model is told");
  lines("max_grad_norm", train.max_grad_norm, "0: gradients are not clipped");
  lines("ema_decay", train.ema_decay, "0: no moving average");
  lines.Mapping("optimizer_params");
  lines("betas", train.optimizer_params.betas, "of AdamW");
  lines("eps", train.optimizer_params.eps);
  lines("weight_decay", train.optimizer_params.weight_decay);
  lines.Indent("  ");
  lines("dtype", train.dtype, Lines::Choices<control::TrainDtype>() + "; master weights are fp32");
  lines("max_nonfinite_steps", train.max_nonfinite_steps, "in a row that are skipped before the run stops");
  lines("max_loss_ratio", train.max_loss_ratio, "of a loss to its running mean, beyond it the run stops; 0: never");
  lines("quantize", train.quantize, "the frozen base in 8 bits (lora)");
  lines("blocks_to_swap", train.blocks_to_swap, "whose frozen weights wait in the host's memory (lora, on a GPU)");
}

void Rest(const TemplateFacts& facts, Lines& lines) {
  const control::TrainSample& sample = facts.config.sample;
  lines.Section("sample");
  lines("sample_every", sample.sample_every, "steps; 0: never");
  lines("prompts", sample.prompts);
  lines("seed", sample.seed);
  lines("steps", sample.steps, "0: the model's default, as below");
  lines("guidance_scale", sample.guidance_scale, "negative: the model's default");
  lines("width", sample.width);
  lines("height", sample.height);
  lines.Section("save");
  lines("save_every", facts.config.save.save_every, "steps; 0: at the end only");
  lines("max_step_saves_to_keep", facts.config.save.max_step_saves_to_keep);
  const control::TrainPublish& publish = facts.config.publish;
  lines.Section("publish");
  lines.Comment("The adapter as it is so far goes to a running server, which has this folder.");
  lines("server", publish.server, "its admin listener, such as http://127.0.0.1:9090");
  lines("adapter_folder", publish.adapter_folder, "of the server's configuration");
  lines("name", publish.name, "that requests have for it; empty: not published");
  lines("publish_every", publish.publish_every, "steps; 0: at the end only");
  lines("api_key_file", publish.api_key_file, "of a key of its admin_keys_file; empty: none");
  lines("server_ca", publish.server_ca, "PEM file for https://; empty: the system's");
  const control::TrainParallelism& parallelism = facts.config.parallelism;
  lines.Section("parallelism");
  lines.Comment("Ranks are the product of these five.");
  lines("data", parallelism.data, "divides batch_size");
  lines("tensor", parallelism.tensor);
  lines("ulysses", parallelism.ulysses);
  lines("ring", parallelism.ring);
  lines("pipe", parallelism.pipe, "stages of blocks, for gradient_accumulation_steps micro-batches");
  lines("sequence_parallel", parallelism.sequence_parallel, "tensor ranks share out tokens too");
  lines("zero", parallelism.zero, "data ranks share out 1: the optimizer's state, 3: weights too");
}

}  // namespace

std::string ConfigTemplate(const TemplateFacts& facts) {
  Lines lines;
  Head(facts, lines);
  Images(facts, lines);
  Network(facts, lines);
  Procedure(facts, lines);
  Rest(facts, lines);
  return lines.Take();
}

}  // namespace tessera::client

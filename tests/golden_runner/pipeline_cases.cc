// Whole trajectories: prompts to images, with the recorded initial latents and noise.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "models/families.h"
#include "models/pixart/caption_cleaning.h"
#include "models/precision.h"
#include "models/tokenizers/t5_tokenizer.h"
#include "runtime/denoiser.h"
#include "runtime/image_output.h"
#include "runtime/samplers/golden_scheduler.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {
namespace {

// The noise that the reference drew, of one row of the batch.
class RecordedNoise final : public NoiseSource {
 public:
  RecordedNoise(const Tensors& gold, int64_t row) : gold_(gold), row_(row) {}

  at::Tensor Initial(at::IntArrayRef, at::ScalarType dtype) override {
    return gold_.at("latents.initial")[row_].to(dtype);
  }
  at::Tensor ForStep(int step, at::IntArrayRef, at::ScalarType dtype) override {
    return gold_.at(absl::StrCat("step.", step, ".noise"))[row_].to(dtype);
  }

 private:
  const Tensors& gold_;
  int64_t row_;
};

// A text, or a list of them; one text stands for every row.
std::vector<std::string> Texts(const Case& test_case, const char* argument, size_t count) {
  const Json* value = test_case.arguments.Find(argument);
  std::vector<std::string> texts;
  if (value != nullptr && value->is_array()) {
    for (const Json& item : value->items()) texts.push_back(*item.AsString());
  } else {
    texts.assign(count, test_case.Text(argument));
  }
  return texts;
}

// Ids and mask of one call of the text encoder, padded as the reference pads them.
absl::Status CompareIds(const Case& test_case, const Tensors& gold, const T5Tokenizer& tokenizer, int call,
                        const std::vector<std::string>& texts, Report& report) {
  const std::string key = absl::StrCat("text.text_encoder.", call);
  const auto expected = gold.find(key + ".input_ids");
  if (expected == gold.end()) return absl::OkStatus();
  const int64_t length = expected->second.size(1);
  const bool clean = test_case.Bool("clean_caption", true);
  for (size_t row = 0; row < texts.size(); ++row) {
    const std::string caption = clean ? CleanCaption(texts[row]) : PlainCaption(texts[row]);
    absl::StatusOr<TokenIds> ids = tokenizer.Encode(caption, test_case.Int("max_sequence_length", length));
    if (!ids.ok()) return ids.status();
    const int64_t tokens = static_cast<int64_t>(ids->ids.size());
    ids->ids.resize(length, tokenizer.pad_id());
    const int64_t r = static_cast<int64_t>(row);
    report.Add(absl::StrCat(key, " row ", row), at::equal(at::tensor(ids->ids, at::kLong), expected->second[r]) ? 0 : 1,
               0);
    if (const auto mask = gold.find(key + ".attention_mask"); mask != gold.end()) {
      report.Add(absl::StrCat(key, " mask"), mask->second[r].sum().item<int64_t>() == tokens ? 0 : 1, 0);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunPipeline(const Case& test_case) {
  const absl::StatusOr<const FamilyEntry*> entry = FindFamily(test_case.Text("pipeline"));
  if (!entry.ok()) return absl::UnimplementedError(test_case.Text("pipeline"));
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  const absl::StatusOr<ModelFolder> folder = ModelFolder::Open(test_case.Path(test_case.Text("folder")));
  if (!folder.ok()) return folder.status();
  const absl::StatusOr<std::unique_ptr<Family>> family = (*entry)->load(*folder, {.device = test_case.device});
  if (!family.ok()) return family.status();
  absl::StatusOr<SamplerConfig> sampler =
      GoldenSamplerConfig(test_case.Text("scheduler_class"), *test_case.arguments.Find("scheduler_config"));
  if (!sampler.ok()) return sampler.status();
  sampler->eta = test_case.Number("eta", 0);
  const absl::StatusOr<std::string> tokenizer_path = folder->ComponentPath("tokenizer");
  if (!tokenizer_path.ok()) return tokenizer_path.status();
  const absl::StatusOr<T5Tokenizer> tokenizer = T5Tokenizer::Load(*tokenizer_path);
  if (!tokenizer.ok()) return tokenizer.status();

  SingleRank group;
  LocalAttention attention;
  const ForwardContext context{.attention = attention, .tensor = group};
  const Json* prompt = test_case.arguments.Find("prompt");
  const size_t count = prompt != nullptr && prompt->is_array() ? prompt->items().size() : 1;
  const std::vector<std::string> prompts = Texts(test_case, "prompt", count);
  const std::vector<std::string> negatives = Texts(test_case, "negative_prompt", count);
  const int steps = static_cast<int>(test_case.Int("steps", 20));

  Report report;
  absl::Status compared = CompareIds(test_case, *gold, *tokenizer, 0, prompts, report);
  if (compared.ok()) compared = CompareIds(test_case, *gold, *tokenizer, 1, negatives, report);
  if (!compared.ok()) return compared;

  const int64_t copies = test_case.Int("images_per_prompt", 1);
  std::vector<DenoiseJob> jobs(count * static_cast<size_t>(copies));
  std::vector<DenoiseJob*> batch;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const size_t row = i / static_cast<size_t>(copies);
    DenoiseJob& job = jobs[i];
    const PromptRequest request{.prompt = prompts[row],
                                .negative_prompt = negatives[row],
                                .clean_caption = test_case.Bool("clean_caption", true),
                                .max_sequence_length = test_case.Int("max_sequence_length", 300),
                                .guidance_scale = test_case.Number("guidance_scale", 4.5),
                                .height = test_case.Int("height", 0),
                                .width = test_case.Int("width", 0)};
    absl::StatusOr<EncodedPrompt> encoded = (*family)->Encode(request, context);
    if (!encoded.ok()) return encoded.status();
    job.branches = std::move(encoded->branches);
    job.geometry = (*family)->Geometry(request.height, request.width);
    absl::StatusOr<std::unique_ptr<Sampler>> made = Sampler::Create(*sampler, steps, {});
    if (!made.ok()) return made.status();
    job.sampler = *std::move(made);
    job.noise = std::make_unique<RecordedNoise>(*gold, static_cast<int64_t>(i));
    DrawInitialLatents(job, **family);
    batch.push_back(&job);
  }

  const double tolerance = test_case.Tolerance("fp32_latents");
  const auto latents = [&] {
    std::vector<at::Tensor> rows;
    for (const DenoiseJob& job : jobs) rows.push_back(job.latents);
    return at::stack(rows);
  };
  Denoiser denoiser(**family, context);
  for (int i = 0; i < steps; ++i) {
    const std::string key = absl::StrCat("step.", i, ".");
    if (const auto expected = gold->find(key + "model_output"); expected != gold->end()) {
      report.Add(key + "model_output", RelativeError(at::stack(Predict(**family, batch, context)), expected->second),
                 tolerance);
    }
    denoiser.Step(batch);
    const auto expected = gold->find(key + "latents");
    if (expected == gold->end()) return absl::NotFoundError(absl::StrCat("no ", key, "latents"));
    report.Add(key + "latents", RelativeError(latents(), expected->second), tolerance);
  }
  const at::Tensor image = (*family)->Decode(latents(), context);
  report.Add("image", AbsoluteError((image / 2 + 0.5).clamp(0, 1), gold->at("image")),
             test_case.Tolerance("fp32_image_absolute"));
  report.Add("image.uint8", AbsoluteError(ToPixels(image), gold->at("image.uint8")), test_case.Tolerance("uint8"));
  return report;
}

}  // namespace tessera::golden

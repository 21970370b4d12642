// Runs whole trajectories from prompts to images, with the recorded initial latents and noise.
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_frames.h"
#include "control/pictures/picture_input.h"
#include "models/adapters/adapter.h"
#include "models/captions/caption_cleaning.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/precision.h"
#include "models/qwen_image/edit_prompt.h"
#include "models/text_encoders/picture_processor.h"
#include "models/tokenizers/tokenizer.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/denoising/picture_inputs.h"
#include "runtime/engine/image_output.h"
#include "runtime/group/prompt_broadcast.h"
#include "tests/golden_runner/case_pictures.h"
#include "tests/golden_runner/golden_case.h"
#include "tests/golden_runner/on_ranks.h"
#include "tests/golden_runner/prompt_with_pictures.h"
#include "tests/golden_runner/stand_in_text_encoder.h"
#include "tests/golden_runner/wide_sampler.h"

namespace tessera::golden {
namespace {

// The noise that the reference drew for one row of the batch.
class RecordedNoise final : public runtime::NoiseSource {
 public:
  RecordedNoise(const Tensors& gold, int64_t row) : gold_(gold), row_(row) {}

  at::Tensor Initial(at::IntArrayRef, at::ScalarType dtype) override {
    return gold_.at(gold_.contains("noise.initial") ? "noise.initial" : "latents.initial")[row_].to(dtype);
  }
  // All images of a case are drawn from one sample of the picture. Qwen-Image's has an axis of time, with one frame.
  at::Tensor ForPicture(int picture, at::IntArrayRef shape, at::ScalarType dtype) override {
    return gold_.at(absl::StrCat("noise.vae.", picture))[0].reshape(shape).to(dtype);
  }
  at::Tensor ForStep(int step, at::IntArrayRef, at::ScalarType dtype) override {
    return gold_.at(absl::StrCat("step.", step, ".noise"))[row_].to(dtype);
  }

 private:
  const Tensors& gold_;
  int64_t row_;
};

// Returns the list of texts of an argument. A single text applies to all `count` rows. No value if the case does not
// have the argument.
std::optional<std::vector<std::string>> Texts(const Case& test_case, const char* argument, size_t count) {
  const base::Json* value = test_case.arguments.Find(argument);
  if (value == nullptr || value->is_null()) return std::nullopt;
  std::vector<std::string> texts;
  for (const base::Json& item : value->items()) texts.push_back(*item.AsString());
  if (!value->is_array()) texts.assign(count, test_case.Text(argument));
  return texts;
}

// Returns the text of one row; empty if the case has none, which means the first encoder's prompt.
std::string RowText(const std::optional<std::vector<std::string>>& texts, size_t row) {
  return texts ? (*texts)[row] : "";
}

struct Prompts {
  Prompts(const Case& test_case, size_t count)
      : positive{Texts(test_case, "prompt", count), Texts(test_case, "prompt_2", count),
                 Texts(test_case, "prompt_3", count)},
        negative{Texts(test_case, "negative_prompt", count), Texts(test_case, "negative_prompt_2", count),
                 Texts(test_case, "negative_prompt_3", count)} {
    // Class-conditional models are given classes by number.
    if (const base::Json* labels = test_case.arguments.Find("labels")) {
      positive[0].emplace();
      for (const base::Json& label : labels->items()) positive[0]->push_back(absl::StrCat(label.AsInt().value_or(-1)));
    }
  }

  std::optional<std::vector<std::string>> positive[3], negative[3];
};

// Returns a prompt as the pipeline gives it to its tokenizer.
std::string Templated(const std::string& pipeline, const std::string& prompt) {
  if (pipeline.starts_with("ZImage")) {
    return absl::StrCat("<|im_start|>user\n", prompt, "<|im_end|>\n<|im_start|>assistant\n");
  }
  if (pipeline.starts_with("Flux2Klein")) {
    return absl::StrCat("<|im_start|>user\n", prompt, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  }
  if (pipeline == "Flux2Pipeline") {
    return absl::StrCat(
        "<s>[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing "
        "on object relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]",
        absl::StrReplaceAll(prompt, {{"[IMG]", ""}}), "[/INST]");
  }
  if (pipeline.starts_with("QwenImage")) {
    return absl::StrCat(
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
        "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n",
        prompt, "<|im_end|>\n<|im_start|>assistant\n");
  }
  return prompt;
}

// Compares ids and mask of every recorded call of a text encoder, padded like the reference's. The first call encodes
// the positive prompts, the second the negative ones.
absl::Status CompareIds(const Case& test_case, const Tensors& gold, const models::ModelFolder& folder,
                        const Prompts& prompts, size_t rows, Report& report) {
  const bool pixart = test_case.Text("pipeline").starts_with("PixArt");
  const bool clean = test_case.Bool("clean_caption", true);
  for (int part = 0; part < 3; ++part) {
    const std::string suffix = part == 0 ? "" : absl::StrCat("_", part + 1);
    const auto component = folder.components().find("tokenizer" + suffix);
    if (component == folder.components().end()) continue;
    const absl::StatusOr<std::unique_ptr<models::Tokenizer>> tokenizer =
        models::LoadTokenizer(component->second.class_name, *folder.ComponentPath("tokenizer" + suffix));
    if (!tokenizer.ok()) return tokenizer.status();
    (*tokenizer)->UseUnknownToken();
    for (int call = 0; call < 2; ++call) {
      std::string key = absl::StrCat("text.text_encoder", suffix, ".", call);
      auto expected = gold.find(key + ".input_ids");
      if (expected == gold.end() && part == 0) {
        key = absl::StrCat("text.", call);
        expected = gold.find(key + ".input_ids");
      }
      if (expected == gold.end()) continue;
      const auto& texts = call == 0 ? prompts.positive : prompts.negative;
      const int64_t length = expected->second.size(1);
      const int64_t max_length = pixart ? test_case.Int("max_sequence_length", length) : length;
      for (size_t row = 0; row < rows; ++row) {
        std::string text = RowText(texts[part], row);
        if (text.empty()) text = RowText(texts[0], row);
        if (pixart) {
          absl::StatusOr<std::string> caption = clean ? models::CleanCaption(text) : models::PlainCaption(text);
          if (!caption.ok()) return caption.status();
          text = *std::move(caption);
        }
        const std::string templated = Templated(test_case.Text("pipeline"), text);
        // The template of FLUX.2 dev has the start token, and its padding is on the side that the files name.
        const bool of_dev = test_case.Text("pipeline") == "Flux2Pipeline";
        absl::StatusOr<models::TokenIds> ids =
            of_dev ? (*tokenizer)->EncodeBare(templated, max_length) : (*tokenizer)->Encode(templated, max_length);
        if (!ids.ok()) return ids.status();
        const int64_t tokens = static_cast<int64_t>(ids->ids.size()), r = static_cast<int64_t>(row);
        const bool left = of_dev && (*tokenizer)->pads_left();
        ids->ids.insert(left ? ids->ids.begin() : ids->ids.end(), static_cast<size_t>(length - tokens),
                        (*tokenizer)->pad_id());
        const bool equal = at::equal(at::tensor(ids->ids, at::kLong), expected->second[r]);
        report.Add(absl::StrCat(key, " row ", row), equal ? 0 : 1, 0);
        if (const auto mask = gold.find(key + ".attention_mask"); mask != gold.end()) {
          report.Add(absl::StrCat(key, " mask"), mask->second[r].sum().item<int64_t>() == tokens ? 0 : 1, 0);
        }
      }
    }
  }
  return absl::OkStatus();
}

// Compares ids and positions of the prompts of a case whose prompts hold pictures: the positive one and, if guidance
// uses it, the negative one.
absl::Status CompareIdsOfEdit(const Case& test_case, const Tensors& gold, const models::ModelFolder& folder,
                              const Prompts& prompts, Report& report) {
  ASSIGN_OR_RETURN(const EditPictures pictures, ReadEditPictures(test_case));
  for (size_t i = 0; i < pictures.of_prompt.size(); ++i) {
    ComparePicture(test_case, gold, absl::StrCat("image.", i, ".uint8"), pictures.of_model[i], report);
    ComparePicture(test_case, gold, absl::StrCat("condition.", i, ".uint8"), pictures.of_prompt[i], report);
  }
  RETURN_IF_ERROR(
      CompareIdsWithPictures(folder, RowText(prompts.positive[0], 0), pictures.of_prompt, "text.0", gold, report));
  return CompareIdsWithPictures(folder, RowText(prompts.negative[0], 0), pictures.of_prompt, "text.1", gold, report);
}

// Tokens of a prompt in cases with pictures that name no number; those of Qwen-Image have the pipeline's default.
constexpr int64_t kTokensWithPictures = 32;

models::PromptRequest RequestOf(const Case& test_case, const Prompts& prompts, size_t row,
                                const models::FamilyDescription& family) {
  const bool few_tokens = test_case.kind == "image_pipeline" && !test_case.Text("pipeline").starts_with("QwenImage");
  models::PromptRequest request{
      .prompt = RowText(prompts.positive[0], row),
      .clean_caption = test_case.Bool("clean_caption", family.default_clean_caption),
      .max_sequence_length =
          test_case.Int("max_sequence_length", few_tokens ? kTokensWithPictures : family.default_max_sequence_length),
      .guidance_scale = test_case.Number("guidance_scale", family.default_guidance_scale),
      .height = test_case.Int("height", family.default_height),
      .width = test_case.Int("width", family.default_width)};
  if (test_case.kind == "image_pipeline") {
    const absl::StatusOr<control::PictureSize> size = SizeOf(test_case);
    if (size.ok()) {
      request.height = size->height;
      request.width = size->width;
    }
  }
  if (prompts.negative[0]) request.negative_prompt = RowText(prompts.negative[0], row);
  control::PromptOptions& options = request.options;
  options.prompt_2 = RowText(prompts.positive[1], row);
  options.prompt_3 = RowText(prompts.positive[2], row);
  options.negative_prompt_2 = RowText(prompts.negative[1], row);
  options.negative_prompt_3 = RowText(prompts.negative[2], row);
  options.true_cfg_scale = test_case.Number("true_cfg_scale", 1);
  options.guidance_rescale = test_case.Number("guidance_rescale", 0);
  // True means 1.
  options.cfg_normalization = test_case.Number("cfg_normalization", test_case.Bool("cfg_normalization", false) ? 1 : 0);
  options.cfg_truncation = test_case.Number("cfg_truncation", 1);
  options.clip_skip = static_cast<int32_t>(test_case.Int("clip_skip", 0));
  const auto numbers = [&](const char* argument) {
    std::vector<int32_t> values;
    if (const base::Json* list = test_case.arguments.Find(argument)) {
      for (const base::Json& item : list->items()) values.push_back(static_cast<int32_t>(item.AsInt().value_or(0)));
    }
    return values;
  };
  control::SkipLayerGuidance& skip = options.skip_layers;
  skip.layers = numbers("skip_guidance_layers");
  skip.scale = test_case.Number("skip_layer_guidance_scale", skip.scale);
  skip.start = test_case.Number("skip_layer_guidance_start", skip.start);
  skip.stop = test_case.Number("skip_layer_guidance_stop", skip.stop);
  if (const std::vector<int32_t> size = numbers("original_size"); size.size() == 2) {
    options.original_size.height = size[0];
    options.original_size.width = size[1];
  }
  if (const std::vector<int32_t> crop = numbers("crops_coords_top_left"); crop.size() == 2) {
    options.original_size.crop_top = crop[0];
    options.original_size.crop_left = crop[1];
  }
  return request;
}

// The latents after every step of a run in fp64 on one rank.
using WideTrajectory = std::vector<at::Tensor>;

// The largest distance of a run in fp64 on several ranks from that on one rank, relative to the latents' maximum.
constexpr double kLayoutTolerance = 1e-12;

// The data that all ranks share.
struct PipelineCase {
  const Case& test_case;
  const models::FamilyEntry& entry;
  models::ModelFolder folder;
  models::FamilyDescription description;
  Tensors gold;
  runtime::SamplerConfig sampler;
  Prompts prompts;
  size_t count;                   // number of prompts
  bool gives_embeddings = false;  // the case has the embeddings of its prompts, and the text encoder is a stand-in
  // Runs everything in fp64. If the case records steps in fp64, the run begins from the recorded conditioning and is
  // compared with them.
  bool fp64 = false;
  WideTrajectory* made = nullptr;            // if set, a run on one rank writes its latents here
  const WideTrajectory* expected = nullptr;  // if set, the latents of every rank must be these

  bool begins_from_pictures() const { return test_case.kind == "image_pipeline"; }
  bool records_fp64() const { return gold.contains("f64.step.0.latents"); }
};

// Returns the sum of the case's adapters at its scales times that of the call. Null if it has none.
absl::StatusOr<models::SharedAdapters> AdaptersOf(const Case& test_case, const models::Family& family,
                                                  const RankPlace& place) {
  const base::Json* files = test_case.arguments.Find("adapters");
  if (files == nullptr) return nullptr;
  const models::AdaptableModel model = family.adaptable();
  std::vector<models::Adapter> adapters;
  std::vector<models::ScaledAdapter> scaled;
  for (const base::Json& file : files->items()) {
    ASSIGN_OR_RETURN(models::Adapter adapter, models::ReadAdapter(test_case.Path(*file.AsString()), model,
                                                                  {.dtype = family.dtype(),
                                                                   .device = family.device(),
                                                                   .tensor = place.share.tensor,
                                                                   .text_encoders = place.groups.world.rank() == 0}));
    adapters.push_back(std::move(adapter));
  }
  const double of_call = test_case.Number("call_scale", 1);
  for (size_t i = 0; i < adapters.size(); ++i) {
    const double scale = test_case.arguments.Find("scales")->items()[i].AsNumber().value_or(0);
    scaled.push_back({.adapter = adapters[i], .scale = scale * of_call});
  }
  return models::AddAdapters(scaled);
}

// Compares the prompts of image `image` that were encoded in fp64 with the recorded ones. The positive prompt is the
// last branch and the first recorded call. Texts that all images share are recorded once, and shorter texts of a batch
// with padding.
void CompareConditioning(const Tensors& gold, int64_t image, const models::Guidance& guidance, double tolerance,
                         Report& report) {
  for (size_t b = 0; b < guidance.branches.size(); ++b) {
    const std::string name = absl::StrCat("f64.call.", guidance.branches.size() - 1 - b, ".in.encoder_hidden_states");
    const auto recorded = gold.find(name);
    if (recorded == gold.end()) continue;
    const at::Tensor& own = guidance.branches[b].row.text;
    const at::Tensor expected = recorded->second[image % recorded->second.size(0)];
    report.Add(name, RelativeError(own, expected.slice(0, 0, own.size(0))), tolerance);
  }
}

// Replaces the encoded prompts of image `image` of `images` by the widened inputs of the transformer's recorded calls.
// Their rows are the images, branch after branch; a reference that calls the transformer once for each branch begins
// with the last one, the positive prompt.
void UseRecordedConditioning(const Tensors& gold, const models::Family& family, int64_t image, int64_t images,
                             models::Guidance& guidance) {
  const std::string first =
      gold.contains("f64.call.0.in.cap_feats.0") ? "f64.call.0.in.cap_feats." : "call.0.in.cap_feats.";
  if (gold.contains(first + "0")) {
    // Z-Image: a text for each row, the positive prompts first.
    const int64_t branches = std::ssize(guidance.branches);
    for (int64_t b = 0; b < branches; ++b) {
      at::Tensor& text = guidance.branches[static_cast<size_t>(b)].row.text;
      const at::Tensor recorded = gold.at(absl::StrCat(first, (branches - 1 - b) * images + image));
      const at::Tensor own = recorded.to(family.device(), family.dtype());
      text = at::constant_pad_nd(own, {0, 0, 0, text.size(0) - own.size(0)});
    }
    return;
  }
  const bool one_call = gold.at("call.0.in.encoder_hidden_states").size(0) > images || guidance.branches.size() == 1;
  for (size_t b = 0; b < guidance.branches.size(); ++b) {
    models::ConditioningRow& row = guidance.branches[b].row;
    const std::string call = absl::StrCat("call.", one_call ? 0 : guidance.branches.size() - 1 - b, ".in.");
    const int64_t index = one_call ? static_cast<int64_t>(b) * images + image : image;
    const auto recorded = [&](const char* name) {
      return gold.at(call + name)[index].to(family.device(), family.dtype());
    };
    row.text = recorded("encoder_hidden_states");
    if (gold.contains(call + "pooled_projections")) row.extras[0] = recorded("pooled_projections");
    if (const auto mask = gold.find(call + "encoder_attention_mask"); mask != gold.end()) {
      row.text = row.text.narrow(0, 0, mask->second[index].sum().item<int64_t>());
    }
  }
}

// Returns the case's pictures as the reference gave them to the autoencoder: in fp64 the recorded ones, widened, and
// otherwise those of the files, which are compared with the recorded ones.
absl::StatusOr<runtime::PictureInputs> PicturesOf(const Case& test_case, const Tensors& gold,
                                                  const models::Family& family, Report& report) {
  const auto on_device = [&](const at::Tensor& tensor) {
    return tensor.to(family.device(), models::AccumulationType(family.dtype()));
  };
  ASSIGN_OR_RETURN(runtime::PictureInputs inputs, PreparedPictures(test_case));
  if (gold.contains("image.0.uint8") || test_case.arguments.Find("hashes") != nullptr) {
    for (size_t i = 0; i < inputs.pictures.size(); ++i) {
      const std::string name = absl::StrCat("image.", i, ".uint8");
      if (const auto recorded = gold.find(name); recorded != gold.end()) {
        const at::Tensor values = recorded->second.permute({2, 0, 1}).unsqueeze(0).to(at::kFloat) / 255 * 2 - 1;
        report.Add(name, AbsoluteError(inputs.pictures[i], values), 0);
      }
      inputs.pictures[i] = on_device(inputs.pictures[i]);
    }
    if (inputs.mask.defined()) {
      report.Add("mask.preprocessed", AbsoluteError(inputs.mask, gold.at("mask.preprocessed")), 0);
      inputs.mask = on_device(inputs.mask);
    }
    return inputs;
  }
  for (at::Tensor& picture : inputs.pictures) {
    report.Add("image.preprocessed", AbsoluteError(picture, gold.at("image.preprocessed")), 0);
    picture = on_device(family.dtype() == at::kDouble ? gold.at("image.preprocessed") : picture);
  }
  if (inputs.mask.defined()) {
    report.Add("mask.preprocessed", AbsoluteError(inputs.mask, gold.at("mask.preprocessed")), 0);
    inputs.mask = on_device(inputs.mask);
  }
  return inputs;
}

// Compares the tokens of pictures that the model looks at, all of which are recorded under the first name that the case
// has.
void CompareReferences(const PipelineCase& p, const runtime::DenoiseJob& job, Report& report) {
  if (job.references.empty()) return;
  const at::Tensor own = at::cat(job.references);
  report.Add("num_ref_tokens", std::abs(p.test_case.Int("num_ref_tokens", own.size(0)) - own.size(0)), 0);
  const std::string precision = p.fp64 ? "f64." : "";
  for (const char* const name : {"references.latents", "image.latents"}) {
    const auto recorded = p.gold.find(precision + name);
    if (recorded == p.gold.end()) continue;
    report.Add(recorded->first, RelativeError(own, recorded->second[0]),
               p.test_case.Tolerance(p.fp64 ? "fp64" : "fp32_latents"));
    return;
  }
}

// Replaces the encoded prompts of image `image` of `images`, or compares them with the recorded ones.
void TakeConditioning(const PipelineCase& p, const models::Family& family, int64_t image, int64_t images,
                      models::Guidance& guidance, Report& report) {
  if (p.gives_embeddings) {
    const at::Tensor& given = p.gold.at("text.prompt_embeds");  // of each prompt
    const int64_t copies = images / given.size(0);
    for (models::GuidanceBranch& branch : guidance.branches) {
      branch.row.text = given[image / copies].to(family.device(), family.dtype());
    }
  } else if (p.fp64 && p.gold.contains("f64.call.0.in.encoder_hidden_states")) {
    CompareConditioning(p.gold, image, guidance, p.test_case.Tolerance("fp64"), report);
  } else if (p.fp64 && p.records_fp64()) {
    UseRecordedConditioning(p.gold, family, image, images, guidance);
  }
}

// Returns the case's images before their first step. `context` is that of the autoencoder.
absl::StatusOr<std::vector<runtime::DenoiseJob>> MakeJobs(const PipelineCase& p, const RankPlace& place,
                                                          models::Family& family,
                                                          const parallel::ForwardContext& context, Report& report) {
  const Case& test_case = p.test_case;
  ASSIGN_OR_RETURN(const models::SharedAdapters adapters, AdaptersOf(test_case, family, place));
  const int steps = static_cast<int>(test_case.Int("steps", p.description.default_steps));
  const auto copies = static_cast<size_t>(test_case.Int("images_per_prompt", 1));
  std::vector<runtime::DenoiseJob> jobs(p.count * copies);
  for (size_t i = 0; i < jobs.size(); ++i) {
    runtime::DenoiseJob& job = jobs[i];
    models::PromptRequest request = RequestOf(test_case, p.prompts, i / copies, p.description);
    request.adapters = job.adapters = adapters;
    if (models::EditingOf(p.folder.class_name()) != models::Editing::kNone) {
      ASSIGN_OR_RETURN(EditPictures pictures, ReadEditPictures(test_case));
      request.pictures = models::MakePromptPictures(std::move(pictures.of_prompt));
    }
    absl::StatusOr<models::EncodedPrompt> encoded = absl::UnknownError("another rank encodes");
    if (place.groups.world.rank() == 0) encoded = family.Encode(request, context);
    encoded = runtime::BroadcastPrompt(std::move(encoded), place.groups.control, place.groups.world, family.device());
    if (!encoded.ok()) return encoded.status();
    job.guidance = std::move(encoded->guidance);
    TakeConditioning(p, family, static_cast<int64_t>(i), std::ssize(jobs), job.guidance, report);
    job.geometry = family.Geometry(request.height, request.width);
    ASSIGN_OR_RETURN(job.sampler, p.fp64 && p.records_fp64()
                                      ? MakeWideSampler(p.sampler, steps, family, job.geometry)
                                      : runtime::MakeSampler(p.sampler, steps, family, job.geometry));
    job.noise = std::make_unique<RecordedNoise>(p.gold, static_cast<int64_t>(i));
    if (!p.begins_from_pictures()) {
      runtime::DrawInitialLatents(job, family);
      continue;
    }
    ASSIGN_OR_RETURN(runtime::PictureInputs inputs, PicturesOf(test_case, p.gold, family, report));
    report.Add("steps_run", std::abs(steps - inputs.first_step - static_cast<int>(test_case.Int("steps_run", steps))),
               0);
    RETURN_IF_ERROR(runtime::BeginFromPictures(job, family, p.description.pictures, inputs, context));
    CompareReferences(p, job, report);
  }
  return jobs;
}

// Compares the decoded image with the recorded one.
absl::Status CompareImage(const PipelineCase& p, const at::Tensor& image, Report& report) {
  // The reference's inpainting of Stable Diffusion 3 decodes without the shift, and records the right picture apart.
  if (const auto painted = p.gold.find("painted.uint8"); painted != p.gold.end()) {
    report.Add(painted->first, AbsoluteError(runtime::ToPixels(image).squeeze(0), painted->second),
               p.test_case.Tolerance("uint8"));
  }
  const bool records_shift = p.gold.contains("image.with_shift") || p.gold.contains("image.with_shift.uint8");
  const std::string shift = records_shift ? ".with_shift" : "";
  if (const auto expected = p.gold.find((p.fp64 ? "f64.image" : "image") + shift); expected != p.gold.end()) {
    report.Add(expected->first, AbsoluteError((image / 2 + 0.5).clamp(0, 1), expected->second),
               p.test_case.Tolerance(p.fp64 ? "fp64" : "fp32_image_absolute"));
  }
  // The reference's inpainting with FLUX.2 cuts the painted picture where it should be scaled to its region.
  const char* const right = p.gold.contains("image.scaled.uint8") ? "image.scaled.uint8" : "image.uint8";
  const auto expected = p.gold.find(records_shift ? "image.with_shift.uint8" : right);
  if (expected == p.gold.end()) return absl::OkStatus();
  at::Tensor pixels = runtime::ToPixels(image);
  if (p.begins_from_pictures()) {
    ASSIGN_OR_RETURN(pixels, FinishedPixels(p.test_case, pixels));
  }
  report.Add(expected->first, AbsoluteError(pixels, expected->second), p.test_case.Tolerance("uint8"));
  return absl::OkStatus();
}

// Runs the whole trajectory on one rank.
absl::StatusOr<Report> RunOnRank(const PipelineCase& p, const RankPlace& place) {
  const c10::InferenceMode no_gradients;
  const Case& test_case = p.test_case;
  const absl::StatusOr<std::unique_ptr<models::Family>> family =
      p.entry.load(p.folder, {.dtype = p.fp64 ? at::kDouble : at::kFloat,
                              .device = test_case.device,
                              .share = place.share,
                              .encodes_prompts = place.groups.world.rank() == 0,
                              .byte_fallback = false});  // like transformers 5, which recorded the goldens
  if (!family.ok()) return family.status();
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const parallel::ForwardContext context{.attention = attention, .tensor = one, .world = place.groups.world};
  Report report;
  ASSIGN_OR_RETURN(std::vector<runtime::DenoiseJob> jobs, MakeJobs(p, place, **family, context, report));
  std::vector<runtime::DenoiseJob*> batch;
  for (runtime::DenoiseJob& job : jobs) batch.push_back(&job);
  const auto steps_run =
      static_cast<int>(test_case.Int("steps_run", test_case.Int("steps", p.description.default_steps)));

  const std::string precision = p.fp64 ? "f64." : "";
  const double tolerance = test_case.Tolerance(p.fp64 ? "fp64" : "fp32_latents");
  // FLUX latents are recorded as tokens.
  const auto compare = [&](const std::string& name, const at::Tensor& actual, const at::Tensor& expected) {
    const at::Tensor value = expected.dim() == 3 ? (*family)->ToPatches(actual) : actual;
    report.Add(name, RelativeError(value, expected), tolerance);
  };
  const auto latents = [&] {
    std::vector<at::Tensor> rows;
    for (const runtime::DenoiseJob& job : jobs) rows.push_back(job.latents);
    return at::stack(rows);
  };
  runtime::Denoiser denoiser(**family, place.groups, {.stage_bounds = place.stage_bounds});
  if (const auto start = p.gold.find(precision + "latents.start"); start != p.gold.end()) {
    compare(start->first, latents(), start->second);
  }
  for (int i = 0; i < steps_run; ++i) {
    const std::string key = absl::StrCat(precision, "step.", i, ".");
    if (const auto expected = p.gold.find(key + "model_output"); expected != p.gold.end()) {
      compare(key + "model_output", at::stack(denoiser.Predict(batch)), expected->second);
    }
    denoiser.Step(batch);
    denoiser.Flush();
    if (p.made != nullptr) p.made->push_back(latents());
    if (p.expected != nullptr) {
      report.Add(absl::StrCat("step ", i, " on one rank in fp64"),
                 RelativeError(latents(), p.expected->at(static_cast<size_t>(i))), kLayoutTolerance);
    }
    // Some cases record the last step alone.
    const auto expected = p.gold.find(key + "latents");
    if (expected != p.gold.end()) {
      compare(key + "latents", latents(), expected->second);
    } else if (i + 1 == steps_run && (!p.fp64 || p.records_fp64())) {
      return absl::NotFoundError(absl::StrCat("no ", key, "latents"));
    }
  }
  if (p.fp64 && (!p.records_fp64() || p.made != nullptr)) return report;  // the image is compared in fp32
  const absl::StatusOr<at::Tensor> image = (*family)->Decode(latents(), context);
  if (!image.ok()) return image.status();
  if (place.groups.world.rank() != 0) return report;  // only the first rank has the image
  RETURN_IF_ERROR(CompareImage(p, *image, report));
  return report;
}

absl::StatusOr<Report> RunOnLayout(const PipelineCase& p, const parallel::Layout& layout) {
  return RunOnRanks(layout, p.description.heads, p.description.blocks,
                    [&](const RankPlace& place) { return RunOnRank(p, place); });
}

// Runs the case in fp64 if it records steps in fp64 or if every rank of the layout is to be compared with one rank.
absl::Status RunInDouble(PipelineCase& p, Report& report) {
  p.fp64 = true;
  WideTrajectory of_one_rank;
  if (p.test_case.against_one_rank && p.test_case.layout.ranks() > 1) {
    p.made = &of_one_rank;
    RETURN_IF_ERROR(RunOnLayout(p, {}).status());
    p.made = nullptr;
    p.expected = &of_one_rank;
  } else if (!p.records_fp64()) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Report wide, RunOnLayout(p, p.test_case.layout));
  report.Add("", wide);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunPipeline(const Case& test_case) {
  absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  absl::StatusOr<models::ModelFolder> folder = OpenPipeline(test_case, test_case.Text("folder"));
  if (!folder.ok()) return folder.status();
  // A model that makes images from text may be run by another pipeline that begins from pictures.
  absl::StatusOr<const models::FamilyEntry*> entry = models::FindFamily(folder->class_name());
  if (!entry.ok()) return absl::UnimplementedError(folder->class_name());
  // The weights may be run as those of another class of the same family.
  const absl::StatusOr<const models::FamilyEntry*> other = models::FindFamily(test_case.Text("pipeline"));
  if (other.ok() && (*other)->family == (*entry)->family) entry = other;
  if (test_case.Bool("drop_t5", false)) folder = folder->Without("text_encoder_3");
  ASSIGN_OR_RETURN(const std::unique_ptr<StandInTextEncoder> stand_in, StandInTextEncoder::MakeIfMissing(*folder));
  if (stand_in != nullptr) {
    ASSIGN_OR_RETURN(folder, stand_in->Open(*folder));
  }
  absl::StatusOr<models::FamilyDescription> description = (*entry)->describe(*folder);
  if (!description.ok()) return description.status();
  if (test_case.kind == "image_pipeline" && description->pictures.use == control::PictureInput::kNone) {
    return absl::UnimplementedError(absl::StrCat(folder->class_name(), " with pictures"));
  }
  absl::StatusOr<runtime::SamplerConfig> sampler =
      SamplerOf(test_case.Text("scheduler_class"), *test_case.arguments.Find("scheduler_config"));
  if (!sampler.ok()) return sampler.status();
  if (auto* ddim = sampler->Find<runtime::DdimOptions>()) ddim->eta = test_case.Number("eta", 0);
  const base::Json* prompt = test_case.arguments.Find(test_case.arguments.Find("labels") ? "labels" : "prompt");
  const size_t count = prompt != nullptr && prompt->is_array() ? prompt->items().size() : 1;
  PipelineCase pipeline{.test_case = test_case,
                        .entry = **entry,
                        .folder = *std::move(folder),
                        .description = *std::move(description),
                        .gold = *std::move(gold),
                        .sampler = *std::move(sampler),
                        .prompts = Prompts(test_case, count),
                        .count = count,
                        .gives_embeddings = stand_in != nullptr};

  Report report;
  if (models::EditingOf(pipeline.folder.class_name()) != models::Editing::kNone) {
    RETURN_IF_ERROR(CompareIdsOfEdit(test_case, pipeline.gold, pipeline.folder, pipeline.prompts, report));
  } else {
    RETURN_IF_ERROR(CompareIds(test_case, pipeline.gold, pipeline.folder, pipeline.prompts, count, report));
  }
  const absl::StatusOr<Report> ranks = RunOnLayout(pipeline, test_case.layout);
  if (!ranks.ok()) return RefusedByName(test_case, ranks.status());
  report.Add("", *ranks);
  RETURN_IF_ERROR(RunInDouble(pipeline, report));
  return report;
}

}  // namespace tessera::golden

#include "runtime/engine/served_jobs.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "control/host/device.h"
#include "control/model/group_share.h"
#include "control/parameters/job_parameters.h"
#include "control/pictures/strength.h"
#include "control/protocol/job_replies.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/text_encoders/picture_processor.h"
#include "runtime/denoising/guided_rows.h"
#include "runtime/device/host_memory.h"
#include "runtime/device/mark.h"
#include "runtime/engine/image_output.h"
#include "runtime/engine/job_pictures.h"
#include "runtime/group/prompt_broadcast.h"

namespace tessera::runtime {
namespace {

// What the guard acts on, as on latents that differ between ranks.
absl::Status NoLongerFinite() { return absl::DataLossError("the latents are no longer finite"); }

control::LatentValues ToValues(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kCPU, at::kDouble).contiguous();
  const double* data = values.const_data_ptr<double>();
  return {.shape = values.sizes().vec(), .values = {data, data + values.numel()}};
}

// The front end has validated the parameters by the model's description, and the control channel their bounds; a peer
// that sends others, or a model whose files were changed since, gets an error.
absl::Status CheckParameters(const control::JobParameters& parameters, const models::FamilyDescription& model) {
  const bool bin = parameters.resolution_binning;
  const auto fits = [&](int32_t side) {
    return side >= (bin ? 1 : model.min_size) && side <= model.max_size && (bin || side % model.size_multiple == 0);
  };
  if ((!bin || model.can_bin) && fits(parameters.height) && fits(parameters.width) &&
      parameters.max_sequence_length <= model.max_sequence_length) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a job of ", parameters.width, "x", parameters.height, bin ? " with" : " without",
                   " resolution binning and ", parameters.max_sequence_length, " text tokens does not fit the model"));
}

// The states of latents of which a step was begun, as they are now: [jobs, 2] on the device.
at::Tensor StatesOf(std::span<DenoiseJob* const> batch) {
  std::vector<at::Tensor> states;
  for (const DenoiseJob* job : batch) states.push_back(job->state);
  return at::stack(states);
}

DenoiserOptions DenoiserOptionsOf(const LoadedModel& model, const parallel::Layout& layout) {
  DenoiserOptions options{.stage_bounds = model.stage_bounds,
                          .patches = layout.patches,
                          .warmup = layout.warmup,
                          .recorder = model.recorder.get()};
  const char* const graphs = std::getenv("TESSERA_GRAPHS");
  const bool wanted = graphs == nullptr || std::string_view(graphs) != "off";
  // Otherwise weights come to other addresses, or there is no memory for graphs.
  const bool stay =
      !model.parameters.placement.stream_blocks && model.family->residency() == nullptr && model.keeps_steps;
  if (wanted && stay && !model.parameters.training) options.graphs.emplace();
  return options;
}

models::AdapterPlace AdapterPlaceOf(const LoadedModel& model) {
  const bool texts_on_host = model.parameters.placement.text_encoders == control::ComponentPlacement::kCpu;
  return {.dtype = model.family->dtype(),
          .device = model.device,
          .tensor = model.share.tensor,
          .text_encoders = model.encodes_prompts,
          .text_device = texts_on_host ? at::Device(at::kCPU) : model.device};
}

absl::Status NoModel() { return absl::FailedPreconditionError("no model is loaded"); }

}  // namespace

void ServedJobs::Serve(LoadedModel& model) {
  served_.reset(
      new Served{.model = model,
                 .adapters = LoadedAdapters(model.family->adaptable(), AdapterPlaceOf(model), IsFlow(model.sampler)),
                 .denoiser = Denoiser(*model.family, model.ranks.groups(), DenoiserOptionsOf(model, place_.layout))});
}

void ServedJobs::Clear() {
  served_.reset();
  jobs_.clear();
}

models::PromptRequest ServedJobs::PromptOf(const control::JobParameters& parameters) const {
  const control::ImageSize generated = control::WorkOf(served_->model.description.cost, parameters).size;
  return {.prompt = parameters.prompt,
          .negative_prompt = parameters.negative_prompt,
          .options = parameters.options,
          .clean_caption = parameters.clean_caption,
          .max_sequence_length = parameters.max_sequence_length > 0
                                     ? parameters.max_sequence_length
                                     : served_->model.description.default_max_sequence_length,
          .guidance_scale = parameters.guidance_scale,
          .height = generated.height,
          .width = generated.width};
}

absl::StatusOr<models::SharedAdapters> ServedJobs::AdaptersOf(const control::JobParameters& parameters,
                                                              const Trainer* trainer) {
  if (control::AdapterKey(parameters.adapters).empty()) {
    return trainer != nullptr ? trainer->adapters() : models::SharedAdapters();
  }
  absl::StatusOr<models::SharedAdapters> adapters = served_->adapters.Sum(parameters.adapters);
  if (!served_->model.ranks.OnEveryRank(adapters.ok()) && adapters.ok()) {
    return absl::AbortedError("loras: another rank cannot read an adapter of the job");
  }
  return adapters;
}

absl::StatusOr<JobPictures> ServedJobs::PicturesOf(const control::JobParameters& parameters, control::ImageSize size) {
  if (parameters.images.empty()) return JobPictures();
  absl::StatusOr<JobPictures> pictures =
      ReadPictures(parameters.images, parameters.mask, served_->model.description.pictures, size.height, size.width);
  if (!served_->model.ranks.OnEveryRank(pictures.ok()) && pictures.ok()) {
    return absl::AbortedError("images: another rank cannot read a picture of the job");
  }
  if (pictures.ok()) pictures->inputs.first_step = control::FirstStepOfStrength(parameters.steps, parameters.strength);
  return pictures;
}

absl::StatusOr<SamplerConfig> ServedJobs::SamplerOf(const control::JobParameters& parameters,
                                                    const models::SharedAdapters& adapters,
                                                    const Trainer* trainer) const {
  SamplerConfig config = served_->model.sampler;
  if (adapters != nullptr && !adapters->prediction_type.empty()) {
    config.prediction_type = PredictionTypeOf(adapters->prediction_type).value_or(config.prediction_type);
  } else if (trainer != nullptr) {
    config.prediction_type = trainer->prediction_type();
  }
  if (parameters.sampler.empty()) return config;
  return WithSampler(config, parameters.sampler);
}

absl::StatusOr<int32_t> ServedJobs::EncodePrompts(absl::Span<const control::JobParameters> jobs) {
  if (served_ == nullptr) return NoModel();
  LoadedModel& model = served_->model;
  // Encoders that the ranks share out are always in memory, so prompts need not wait for one another.
  if (place_.rank_in_layout() != 0 || model.shares_texts) return 0;
  std::vector<models::PromptRequest> prompts;
  for (const control::JobParameters& job : jobs) {
    if (!CheckParameters(job, model.description).ok()) continue;
    absl::StatusOr<models::SharedAdapters> adapters = served_->adapters.Sum(job.adapters);
    if (!adapters.ok()) continue;  // its job will say why
    absl::StatusOr<std::vector<control::Frames>> pictures = ReadPromptPictures(job.images, model.description.pictures);
    if (!pictures.ok()) continue;
    prompts.push_back(PromptOf(job));
    prompts.back().adapters = *std::move(adapters);
    prompts.back().pictures = models::MakePromptPictures(*std::move(pictures));
  }
  return static_cast<int32_t>(model.family->EncodeAhead(prompts, model.ranks.context()));
}

absl::StatusOr<models::EncodedPrompt> ServedJobs::Encode(const models::PromptRequest& prompt) {
  const LoadedModel& model = served_->model;
  const parallel::RankGroups& groups = model.ranks.groups();
  absl::StatusOr<models::EncodedPrompt> encoded = absl::UnknownError("encoded by rank 0");
  if (model.encodes_prompts) encoded = model.family->Encode(prompt, model.ranks.context());
  if (model.shares_texts) return encoded;
  return BroadcastPrompt(std::move(encoded), groups.control, groups.world, model.device);
}

absl::StatusOr<control::JobStarted> ServedJobs::Start(uint64_t id, const control::JobParameters& parameters,
                                                      const Trainer* trainer) {
  if (served_ == nullptr) return NoModel();
  if (jobs_.contains(id)) return absl::AlreadyExistsError(absl::StrCat("job ", id, " exists already"));
  RETURN_IF_ERROR(CheckParameters(parameters, served_->model.description));
  RETURN_IF_ERROR(control::CheckPictures(parameters, served_->model.description.pictures));
  models::Family& family = *served_->model.family;
  models::PromptRequest prompt = PromptOf(parameters);
  ASSIGN_OR_RETURN(prompt.adapters, AdaptersOf(parameters, trainer));
  const absl::StatusOr<SamplerConfig> sampler = SamplerOf(parameters, prompt.adapters, trainer);
  if (!sampler.ok()) return sampler.status();
  const control::ImageSize generated{.height = prompt.height, .width = prompt.width};
  ASSIGN_OR_RETURN(JobPictures pictures, PicturesOf(parameters, generated));
  prompt.pictures = models::MakePromptPictures(std::move(pictures.of_prompt));
  const absl::Duration begin = base::SteadyNow();
  absl::StatusOr<models::EncodedPrompt> encoded = Encode(prompt);
  if (!encoded.ok()) return encoded.status();
  const double encode_seconds = absl::ToDoubleSeconds(base::SteadyNow() - begin);

  Job job{.height = parameters.height, .width = parameters.width};
  if (!served_->model.description.binning_keeps_size) {
    job.height = generated.height;
    job.width = generated.width;
    if (generated.height != parameters.height || generated.width != parameters.width) {
      encoded->warnings.push_back(absl::StrCat("the size ", parameters.width, "x", parameters.height, " became ",
                                               generated.width, "x", generated.height,
                                               ", the nearest of the model's table; turn resolution binning off to "
                                               "keep the size"));
    }
  }
  if (prompt.adapters != nullptr) {
    const std::vector<std::string>& of_adapters = prompt.adapters->warnings;
    encoded->warnings.insert(encoded->warnings.end(), of_adapters.begin(), of_adapters.end());
  }
  job.denoise.id = id;
  job.denoise.geometry = family.Geometry(generated.height, generated.width);
  job.denoise.guidance = std::move(encoded->guidance);
  job.denoise.adapters = prompt.adapters;
  ASSIGN_OR_RETURN(std::unique_ptr<Sampler> made,
                   MakeSampler(*sampler, parameters.steps, family, job.denoise.geometry));
  job.denoise.sampler = std::move(made);
  job.denoise.noise = parameters.noise == control::NoiseKind::kTorchCpu
                          ? MakeTorchCpuNoise(parameters.seed, family.dtype())
                          : MakeTesseraNoise(parameters.seed);
  if (pictures.inputs.pictures.empty()) {
    DrawInitialLatents(job.denoise, family);
  } else {
    RETURN_IF_ERROR(BeginFromPictures(job.denoise, family, served_->model.description.pictures, pictures.inputs,
                                      served_->model.ranks.context()));
  }
  if (place_.rank == 0 && pictures.kept.has_value()) {
    job.kept = std::make_shared<const KeptPixels>(*std::move(pictures.kept));
  }
  const Job& started = jobs_.emplace(id, std::move(job)).first->second;
  return control::JobStarted{.height = static_cast<int32_t>(started.height),
                             .width = static_cast<int32_t>(started.width),
                             .generated_height = static_cast<int32_t>(generated.height),
                             .generated_width = static_cast<int32_t>(generated.width),
                             .first_step = started.denoise.sampler->first_step(),
                             .steps = started.denoise.sampler->num_steps() - started.denoise.sampler->first_step(),
                             .sampler = SamplerName(*sampler),
                             .prompt_tokens = static_cast<int32_t>(encoded->prompt_tokens),
                             .max_sequence_length = static_cast<int32_t>(prompt.max_sequence_length),
                             .seconds = encode_seconds,
                             .cached = encoded->cached,
                             .warnings = std::move(encoded->warnings)};
}

absl::StatusOr<ServedJobs::Job*> ServedJobs::Find(uint64_t id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return absl::NotFoundError(absl::StrCat("job ", id, " does not exist"));
  return &found->second;
}

absl::StatusOr<std::vector<DenoiseJob*>> ServedJobs::BatchOf(absl::Span<const uint64_t> jobs) {
  std::vector<DenoiseJob*> batch;
  for (const uint64_t id : jobs) {
    ASSIGN_OR_RETURN(Job* const found, Find(id));
    DenoiseJob& job = found->denoise;
    if (job.done()) {
      return absl::FailedPreconditionError(absl::StrCat("job ", id, " has no steps left"));
    }
    if (!batch.empty() &&
        (job.geometry.height != batch[0]->geometry.height || job.geometry.width != batch[0]->geometry.width)) {
      return absl::InvalidArgumentError("the jobs of one batch differ in size");
    }
    batch.push_back(&job);
  }
  if (batch.empty()) return absl::InvalidArgumentError("a batch without jobs");
  return batch;
}

absl::Status ServedJobs::ReserveMemory(std::span<DenoiseJob* const> batch) {
  // The host says nothing before its memory is used up.
  const LoadedModel& model = served_->model;
  if (place_.layout.ranks() == 1 || model.device.is_cpu() || served_->denoiser.Continues(batch)) {
    return absl::OkStatus();
  }
  // Branches and heads are not taken as divided: a rank may hold all of them for a moment.
  const control::GroupShare share = {.sequence = model.ranks.groups().sequence.size(),
                                     .images_share_passes = ImagesSharePasses(model.device),
                                     .element_bytes = static_cast<int64_t>(c10::elementSize(model.family->dtype()))};
  const control::ModelCost& cost = model.description.cost;
  const models::TokenGrid& grid = batch[0]->geometry.grid;
  control::ImageWork most = {.size = {.height = grid.height * cost.token_side, .width = grid.width * cost.token_side}};
  for (const DenoiseJob* job : batch) {
    int64_t reference_tokens = 0;
    for (const at::Tensor& reference : job->references) reference_tokens += reference.size(0);
    most.rows = std::max<int64_t>(most.rows, std::ssize(job->guidance.branches));
    for (const models::GuidanceBranch& branch : job->guidance.branches) {
      const int64_t text_tokens = branch.row.text.defined() ? branch.row.text.size(0) : 0;
      most.text_tokens = std::max(most.text_tokens, text_tokens + reference_tokens);
    }
  }
  const double bytes = control::ActivationBytes(cost, most, std::ssize(batch), share);
  bool fits = true;
  try {
    const at::Tensor room = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(model.device));
  } catch (const c10::OutOfMemoryError&) {
    fits = false;
  }
  return model.ranks.OnEveryRank(fits) ? absl::OkStatus() : OutOfDeviceMemory();
}

absl::StatusOr<control::Stepping> ServedJobs::Step(absl::Span<const uint64_t> jobs) {
  ASSIGN_OR_RETURN(const std::vector<DenoiseJob*> batch, BatchOf(jobs));
  const LoadedModel& model = served_->model;
  RETURN_IF_ERROR(ReserveMemory(batch));
  const auto begun = std::make_shared<Mark>(model.device);
  served_->denoiser.Step(batch);
  const bool digests = place_.layout.ranks() > 1 && served_->denoiser.has_latents();
  const at::Tensor states = ToHost(StatesOf(batch));
  const auto done = std::make_shared<Mark>(model.device);
  // On any thread.
  return
      [&model, begun, done, states, digests, completed = batch[0]->completed()]() -> absl::StatusOr<control::Stepped> {
        model.ranks.WaitFor(*done);
        uint64_t digest = 0;
        const auto* words = states.const_data_ptr<int64_t>();
        for (int64_t job = 0; job < states.size(0); ++job, words += states.size(1)) {
          if (words[0] == 0) return NoLongerFinite();
          digest = digest * 3 + static_cast<uint64_t>(words[1]);
        }
        // 0 stands for no digest.
        return control::Stepped{.completed = completed,
                                .seconds = done->SecondsSince(*begun),
                                .digest = !digests      ? 0
                                          : digest == 0 ? 1
                                                        : digest,
                                .device_memory = MemoryOf(model.device)};
      };
}

absl::StatusOr<control::Decoding> ServedJobs::Decode(uint64_t id) {
  ASSIGN_OR_RETURN(const Job* const job, Find(id));
  served_->denoiser.Flush();
  if (!IsFinite(job->denoise)) return NoLongerFinite();
  const control::Decoded picture = {.height = static_cast<int32_t>(job->height),
                                    .width = static_cast<int32_t>(job->width),
                                    .completed = job->denoise.completed()};
  return [this, latents = job->denoise.latents, kept = job->kept, picture](control::RowSink rows) {
    return MakePixels(latents, kept.get(), picture, rows);
  };
}

absl::StatusOr<control::Decoded> ServedJobs::MakePixels(const at::Tensor& latents, const KeptPixels* kept,
                                                        control::Decoded picture, control::RowSink rows) const {
  const absl::Duration begin = base::SteadyNow();
  const absl::StatusOr<at::Tensor> image =
      served_->model.family->Decode(latents.unsqueeze(0), served_->model.ranks.context());
  if (!image.ok()) {
    guard_.Poison(std::string(image.status().message()));  // the other ranks may wait for this one's rows
    return image.status();
  }
  if (place_.rank == 0) {
    const at::Tensor pixels = ToPixels(ResizeAndCrop(*image, picture.height, picture.width)).squeeze(0).cpu();
    absl::Span<const uint8_t> bytes(pixels.const_data_ptr<uint8_t>(), static_cast<size_t>(pixels.numel()));
    control::Frames composed{.width = picture.width, .height = picture.height};
    if (kept != nullptr) {
      composed.bytes.assign(bytes.begin(), bytes.end());
      ASSIGN_OR_RETURN(composed, kept->Over(composed));
      bytes = composed.bytes;
    }
    RETURN_IF_ERROR(rows(0, bytes));
  }
  picture.channels = static_cast<int32_t>(image->size(1));
  picture.seconds = absl::ToDoubleSeconds(base::SteadyNow() - begin);
  return picture;
}

absl::StatusOr<control::LatentValues> ServedJobs::Latents(uint64_t id) {
  ASSIGN_OR_RETURN(const Job* const job, Find(id));
  served_->denoiser.Flush();
  return ToValues(job->denoise.latents);
}

absl::StatusOr<control::LatentValues> ServedJobs::Predict(uint64_t id, const control::LatentValues& latents,
                                                          absl::Span<const uint64_t> others) {
  std::vector<uint64_t> jobs = {id};
  jobs.insert(jobs.end(), others.begin(), others.end());
  ASSIGN_OR_RETURN(const std::vector<DenoiseJob*> batch, BatchOf(jobs));
  DenoiseJob& denoise = *batch.front();
  if (at::IntArrayRef(latents.shape) != denoise.latents.sizes()) {
    return absl::InvalidArgumentError("the latents are not of the job's shape");
  }
  served_->denoiser.Flush();
  const at::Tensor own = denoise.latents;
  const absl::Cleanup restore = [&] { denoise.latents = own; };
  denoise.latents = at::tensor(latents.values, at::kDouble).view(latents.shape).to(own.options());
  const at::Tensor prediction = served_->denoiser.Predict(batch)[0];
  return ToValues(prediction.view(latents.shape));
}

absl::Status ServedJobs::End(uint64_t id) {
  if (!jobs_.contains(id)) return absl::OkStatus();
  const absl::Status flushed = guard_.Run([&] {
    served_->denoiser.Flush();  // the job may be in the batch under way
    return absl::OkStatus();
  });
  jobs_.erase(id);
  if (jobs_.empty()) freed_memory_.Release();
  return flushed;
}

}  // namespace tessera::runtime

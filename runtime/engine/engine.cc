#include "runtime/engine/engine.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <malloc.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/field_error.h"
#include "base/machine_memory.h"
#include "base/machine_processors.h"
#include "base/planted.h"
#include "base/status_macros.h"
#include "control/communicators.h"
#include "control/gpu_driver.h"
#include "control/host_topology.h"
#include "control/training/model_training.h"
#include "kernels/cpu/isa.h"
#include "models/precision.h"
#include "parallel/segment/effort_meter.h"
#include "runtime/denoising/guided_rows.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/device/device.h"
#include "runtime/device/host_memory.h"
#include "runtime/device/mark.h"
#include "runtime/device/nccl_log.h"
#include "runtime/device/numa_binding.h"
#include "runtime/engine/image_output.h"
#include "runtime/engine/loaded_contents.h"
#include "runtime/engine/make_engine.h"
#include "runtime/engine/model_info.h"
#include "runtime/engine/prompt_broadcast.h"
#include "runtime/engine/run_memory.h"

namespace tessera::runtime {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

absl::Status OutOfDeviceMemory() {
  return absl::ResourceExhaustedError(
      "out of memory on the device; use a smaller size, a smaller dtype or fewer images");
}

// What the guard acts on, as on latents that differ between ranks.
absl::Status NoLongerFinite() { return absl::DataLossError("the latents are no longer finite"); }

// The front end watches the ranks and ends a group whose ranks no longer get on, so this is only the last resort.
constexpr std::chrono::hours kCommunicatorDeadline(2);

parallel::Mesh MeshOf(const parallel::Layout& layout) {
  const absl::StatusOr<parallel::Mesh> mesh = parallel::Mesh::Create(layout.mesh, layout.ranks());
  TORCH_CHECK(mesh.ok(), std::string(mesh.status().message()));
  return *mesh;
}

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

std::optional<control::DeviceMemory> MemoryOf(at::Device device) {
  const std::optional<kernels::DeviceMemory> memory = ReadDeviceMemory(device);
  if (!memory) return std::nullopt;
  return control::DeviceMemory{.total = static_cast<uint64_t>(memory->total),
                               .free = static_cast<uint64_t>(memory->free),
                               .used = static_cast<uint64_t>(memory->used),
                               .cached = static_cast<uint64_t>(memory->cached)};
}

int64_t PromptCacheBytes(const control::LoadParameters& parameters) {
  return static_cast<int64_t>(std::min<uint64_t>(parameters.prompt_cache_bytes, std::numeric_limits<int64_t>::max()));
}

// What is left when the cache of prompts is full. What is free counts in any case: some of the weights may be in the
// host's memory.
std::optional<control::MemoryBudget> BudgetAfter(int64_t weights, int64_t prompts, at::Device device) {
  const std::optional<kernels::DeviceMemory> memory = ReadDeviceMemory(device);
  if (!memory) return std::nullopt;
  const int64_t free = std::max<int64_t>(0, memory->free - prompts);
  return control::MemoryBudget{
      .most = static_cast<uint64_t>(std::max({memory->total - weights - prompts, free, int64_t{1}})),
      .free = static_cast<uint64_t>(free)};
}

DenoiserOptions DenoiserOptionsOf(const control::LoadParameters& parameters, const parallel::Layout& layout,
                                  std::vector<int> stage_bounds, StepRecorder* recorder) {
  DenoiserOptions options{.stage_bounds = std::move(stage_bounds),
                          .patches = layout.patches,
                          .warmup = layout.warmup,
                          .recorder = recorder};
  const char* const graphs = std::getenv("TESSERA_GRAPHS");
  const bool wanted = graphs == nullptr || std::string_view(graphs) != "off";
  // Elsewhere weights come to other addresses.
  if (wanted && !parameters.placement.stream_blocks && !parameters.training) options.graphs.emplace();
  return options;
}

// For the log. `nccl_log` is of a rank whose communicators are warm; null where nobody reads it.
std::string HowRanksExchange(const parallel::MeshCommunicators& communicators, const NcclLog* nccl_log) {
  if (communicators.uses_nccl()) {
    const std::string log = nccl_log == nullptr ? "" : nccl_log->Take().value_or("");
    const NcclRoutes routes = ReadNcclRoutes(log);
    const control::HostTopology topology = control::ReadHostTopology(*control::MakeGpuDriver());
    const std::optional<std::string> warning = SlowNetworkWarning(routes, topology);
    return absl::StrCat("the ranks exchange tensors through ",
                        control::ExchangeText("NCCL", TransportsOf(routes, topology, communicators.cards())),
                        warning ? "\nwarning: " : "", warning.value_or(""));
  }
  const std::string& why = communicators.why_not_nccl();
  return absl::StrCat("the ranks exchange tensors through the memory of the host",
                      why.empty() ? "" : "; NCCL is not used: ", why);
}

// LibTorch's own default is the machine's cores, or what OMP_NUM_THREADS says; it knows nothing of control groups.
void UseThreads(int threads) {
  at::set_num_threads(threads > 0 ? threads
                                  : std::min<int>(at::get_num_threads(), base::ReadMachineProcessors().available()));
}

void BindNear(const at::Device& device) {
  if (device.is_cuda()) std::fprintf(stderr, "%s\n", BindNearCudaDevice(device.index()).c_str());
}

}  // namespace

Engine::Engine(const WorkerRank& place) : Engine(place, [](const std::string& name) { return OpenDevice(name); }) {}

Engine::Engine(const WorkerRank& place, DeviceOpener open_device)
    : place_(place), open_device_(std::move(open_device)), mesh_(MeshOf(place.layout)) {}

Engine::Ranks::Ranks(at::Device device, const WorkerRank& place)
    : communicators(place.ranks() == 1 || place.data > 0
                        ? nullptr
                        : std::make_unique<parallel::MeshCommunicators>(
                              device, place.segment, place.rank,
                              parallel::HostCommunicatorOptions{.deadline = kCommunicatorDeadline},
                              parallel::NcclOptions{.deadline = kCommunicatorDeadline})),
      training_communicators(place.ranks() == 1 || place.data == 0
                                 ? nullptr
                                 : std::make_unique<HostTrainingGroups>(
                                       device, place.segment, place.rank,
                                       parallel::HostCommunicatorOptions{.deadline = kCommunicatorDeadline})),
      training(training_communicators == nullptr ? TrainingGroups::Alone(one) : training_communicators->groups()),
      groups(communicators == nullptr ? training.model : communicators->groups()),
      context{.attention = attention, .tensor = one, .world = groups.world} {}

void Engine::Poison(const std::string& reason) {
  if (place_.ranks() > 1) place_.segment->Poison(place_.rank, reason);
}

// It goes to the log in full, and to the user without its internals.
absl::Status Engine::StatusOf(const c10::Error& error) const {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return OutOfDeviceMemory();
  if (absl::StrContains(error.what_without_backtrace(), "can't allocate memory")) {
    return absl::ResourceExhaustedError("out of memory; use a smaller size, a smaller dtype or fewer images");
  }
  if (!DeviceWorks(device_)) {
    return absl::UnavailableError("the device failed; restart this worker, whose log has the device's error");
  }
  return absl::InternalError("the tensor library reported an error; the worker's log has it");
}

template <class Function>
auto Engine::Guarded(const Function& function, bool with_gradients) -> decltype(function()) {
  const c10::InferenceMode no_gradients(!with_gradients);
  try {
    return function();
  } catch (const parallel::CommError& error) {
    return absl::AbortedError(error.what());
  } catch (const c10::Error& error) {
    absl::Status status = StatusOf(error);
    Poison(std::string(status.message()));
    return status;
  } catch (const std::exception& error) {
    Poison(error.what());
    throw;
  }
}

absl::StatusOr<control::ModelDescription> Engine::Describe(const std::string& model) {
  ASSIGN_OR_RETURN(const models::ModelFolder folder, models::ModelFolder::Open(model));
  ASSIGN_OR_RETURN(const models::FamilyEntry* entry, models::FindFamily(folder.class_name()));
  ASSIGN_OR_RETURN(models::FamilyDescription description, entry->describe(folder));
  ASSIGN_OR_RETURN(const SamplerConfig sampler, ReadSamplerConfig(folder, description.warnings));
  absl::StatusOr<control::ModelDescription> model_description =
      DescribeModel(folder, entry->family, description, sampler);
  if (model_description.ok()) {
    model_description->instruction_set = kernels::cpu::InstructionSetName();
    model_description->libraries = absl::StrCat("LibTorch ", TORCH_VERSION, ", ", at::get_cpu_capability(), ", ",
                                                model_description->instruction_set);
  }
  return model_description;
}

absl::StatusOr<control::DeviceIdentity> Engine::Identify(const std::string& device) {
  ASSIGN_OR_RETURN(const kernels::DeviceIdentity identity, IdentifyDevice(device));
  return control::DeviceIdentity{
      .device = identity.device,
      .driver = identity.driver,
      .cudnn = identity.cudnn,
      .nccl = identity.nccl,
      .communicator = identity.joins_nccl ? control::kNcclCommunicator : control::kHostCommunicator};
}

bool Engine::OnEveryRank(bool holds) {
  const std::vector<int64_t> one_each(static_cast<size_t>(mesh_.world_size()), 1);
  return ranks_->groups.control.AllGather(at::full({1}, holds), one_each).all().item<bool>();
}

Engine::DeviceShare Engine::ShareOfDevice(int64_t free, int64_t needed) {
  const std::string name = kernels::DeviceRuntimeOf(device_.type()).card(device_.index());
  const auto card = static_cast<int64_t>(base::Crc32c(name));
  // [ranks, 2]
  const at::Tensor all =
      ranks_->groups.control.AllGather(at::tensor({card, needed}, at::kLong).view({1, 2}),
                                       std::vector<int64_t>(static_cast<size_t>(mesh_.world_size()), 1));
  if (name.empty() || needed == 0 || base::Planted("ranks_on_a_card_plan_alone")) return {.bytes = free};
  const at::Tensor here = all.select(1, 0).eq(card);
  const int64_t together = all.select(1, 1).masked_select(here).sum().item<int64_t>();
  return {.bytes = static_cast<int64_t>(static_cast<double>(free) *
                                        (static_cast<double>(needed) / static_cast<double>(together))),
          .ranks = here.sum().item<int64_t>()};
}

absl::StatusOr<models::LoadRequest> Engine::FitMemory(const models::ModelFolder& folder,
                                                      const control::LoadParameters& parameters,
                                                      const models::FamilyDescription& description) {
  models::LoadRequest request = {
      .dtype = parameters.dtype,
      .on_device = !device_.is_cpu(),
      .placement = parameters.placement,
      .encodes_prompts = EncodesPrompts(SharesTexts(parameters)),
      .ranks = mesh_.world_size(),
      .transformer_parts = mesh_.size(parallel::Axis::kPipe) * mesh_.size(parallel::Axis::kTensor),
      .quantize = parameters.quantize,
      .offload = parameters.placement.offload == control::Offload::kAlways ? models::Offloaded::kAll
                                                                           : models::Offloaded::kNone,
      .run_bytes = parameters.training
                       ? 0
                       : RunBytes(description, parameters.dtype, mesh_.shape(),
                                  device_.is_cpu() ? control::DeviceKind::kCpu : control::DeviceKind::kCuda),
      .prompt_cache_bytes = PromptCacheBytes(parameters)};
  if (parameters.blocks_to_swap > 0) {
    ASSIGN_OR_RETURN(const control::ModelDescription described, Describe(parameters.model));
    RETURN_IF_ERROR(control::CheckBlocksToSwap(parameters.blocks_to_swap, described));
    const models::WeightShare share =
        ShareOf(mesh_, place_.rank_in_layout(),
                StageBounds(described.transformer.block_flops, mesh_.size(parallel::Axis::kPipe)));
    const control::SwappedParameters swapped =
        control::SwappedParametersOf(described, parameters.blocks_to_swap, share.blocks.begin, share.blocks.end);
    request.waiting_parameters = static_cast<int64_t>(swapped.waiting) / share.tensor.size;
    request.buffer_parameters = static_cast<int64_t>(swapped.buffers) / share.tensor.size;
  }
  ASSIGN_OR_RETURN(models::LoadPlan plan, models::PlanLoad(folder, request));
  // All ranks share the main memory and load at the same time, so the first one counts for all of them.
  base::MachineMemory memory;
  if (place_.rank == 0) {
    request.encodes_prompts = SharesTexts(parameters);
    ASSIGN_OR_RETURN(const models::LoadPlan other, models::PlanLoad(folder, request));
    memory = base::ReadMachineMemory().Without(plan.host.peak * (place_.replicas() - 1) +
                                               other.host.peak * (place_.ranks() - place_.replicas()));
  }
  const std::optional<kernels::DeviceMemory> on_device = ReadDeviceMemory(device_);
  const DeviceShare share = ShareOfDevice(on_device ? on_device->free : 0, plan.device.peak);
  if (on_device && parameters.placement.offload == control::Offload::kAuto && !parameters.training) {
    plan = models::OffloadedWhereNeeded(plan, memory, share.bytes);
    if (plan.request.offload != models::Offloaded::kNone) {
      std::fprintf(
          stderr,
          "the device has no room for weights that are used once per image: they are offloaded to main memory\n");
    }
  }
  absl::Status fits = models::CheckFits(plan, memory, on_device ? std::optional<int64_t>(share.bytes) : std::nullopt);
  if (!fits.ok() && share.ranks > 1) {
    fits = absl::Status(fits.code(), absl::StrCat(fits.message(), "\n", share.ranks, " ranks share the device's ",
                                                  "memory, and only a part of the free memory is available to each"));
  }
  if (!OnEveryRank(fits.ok()) && fits.ok())
    return absl::AbortedError("the model does not fit into memory on another rank");
  RETURN_IF_ERROR(fits);
  return plan.request;
}

bool Engine::SharesTexts(const control::LoadParameters& parameters) const {
  return mesh_.world_size() > 1 && parameters.placement.text_encoders == control::ComponentPlacement::kSharded;
}

absl::Status Engine::CheckTraining(const control::LoadParameters& parameters) const {
  if (!parameters.training) {
    if (parameters.blocks_to_swap > 0) return absl::InvalidArgumentError("blocks can be swapped only for training");
    return parameters.quantize ? absl::InvalidArgumentError("weights can be quantized only for training")
                               : absl::OkStatus();
  }
  if (place_.layout.mesh.cfg > 1) return absl::InvalidArgumentError("training has no guidance branches");
  if (parameters.placement.stream_blocks) return absl::InvalidArgumentError("streamed blocks cannot be trained");
  if (parameters.placement.text_encoders == control::ComponentPlacement::kSharded) {
    return absl::InvalidArgumentError("text_encoders is sharded; for training it must be rank0, cpu or unload");
  }
  if (parameters.placement.offload == control::Offload::kAlways) {
    return absl::InvalidArgumentError("offload is always; it must be auto or never for training");
  }
  return absl::OkStatus();
}

absl::Status Engine::JoinRanks() {
  return Guarded([&]() -> absl::Status {
    ranks_ = std::make_unique<Ranks>(device_, place_);
    if (ranks_->communicators == nullptr) return absl::OkStatus();
    ranks_->communicators->WarmUp();
    // Each rank has connections of its own.
    if (!device_.is_cpu() && (place_.rank == 0 || ranks_->communicators->uses_nccl())) {
      std::fprintf(stderr, "%s\n", HowRanksExchange(*ranks_->communicators, place_.nccl_log.get()).c_str());
    }
    return absl::OkStatus();
  });
}

void Engine::Unload() {
  trainer_.reset();
  denoiser_.reset();
  recorder_.reset();
  jobs_.clear();
  adapters_.reset();
  if (model_ != nullptr) {
    model_.reset();
    malloc_trim(0);  // the worker's allocator keeps what is freed, and the plan of the next model asks what is left
  }
  ranks_.reset();
  ReleaseDeviceMemory(device_);
}

absl::Status Engine::OpenRecorder(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<control::StepRecordWriter>> writer =
      control::StepRecordWriter::Create(path, place_.rank);
  if (writer.ok()) {
    recorder_ = std::make_unique<StepRecorder>(*std::move(writer));
  } else {
    Poison(std::string(writer.status().message()));
  }
  return writer.status();
}

absl::StatusOr<control::Loaded> Engine::Load(const control::LoadParameters& parameters) {
  RETURN_IF_ERROR(CheckTraining(parameters));
  Unload();
  const Stopwatch watch;
  ASSIGN_OR_RETURN(const at::Device device, open_device_(parameters.device));
  if (device != device_) BindNear(device);
  device_ = device;
  RETURN_IF_ERROR(JoinRanks());
  ASSIGN_OR_RETURN(const models::ModelFolder folder, models::ModelFolder::Open(parameters.model));
  ASSIGN_OR_RETURN(const models::FamilyEntry* entry, models::FindFamily(folder.class_name()));
  ASSIGN_OR_RETURN(models::FamilyDescription description, entry->describe(folder));
  ASSIGN_OR_RETURN(const models::LoadRequest fitted,
                   Guarded([&] { return FitMemory(folder, parameters, description); }));
  UseThreads(parameters.placement.threads);
  return Guarded(
      [&]() -> absl::StatusOr<control::Loaded> {
        std::optional<LoadedContents> contents;
        if (!parameters.training) {
          ASSIGN_OR_RETURN(control::ModelDescription described, Describe(parameters.model));
          contents.emplace(folder, std::move(described), ranks_->groups.control);
        }
        auto model = std::make_unique<Model>(Model{.folder = folder,
                                                   .description = std::move(description),
                                                   .sampler = {},
                                                   .family = nullptr,
                                                   .trains = parameters.training,
                                                   .shares_texts = SharesTexts(parameters)});
        const bool encodes = EncodesPrompts(model->shares_texts);
        ASSIGN_OR_RETURN(model->sampler, ReadSamplerConfig(folder, model->description.warnings));
        RETURN_IF_ERROR(OpenRecorder(parameters.record));
        const std::vector<int> stage_bounds =
            StageBounds(model->description.block_flops, mesh_.size(parallel::Axis::kPipe));
        models::WeightShare share = ShareOf(mesh_, place_.rank_in_layout(), stage_bounds);
        share.waiting = control::SwappedBlocks(model->description.blocks, parameters.blocks_to_swap);
        absl::StatusOr<std::unique_ptr<models::Family>> family =
            entry->load(folder, {.dtype = ScalarTypeOf(parameters.dtype),
                                 .device = device,
                                 .placement = fitted.placement,
                                 .prompt_cache_bytes = PromptCacheBytes(parameters),
                                 .for_training = parameters.training,
                                 .quantize = parameters.quantize,
                                 .offload = fitted.offload,
                                 .share = share,
                                 .encodes_prompts = encodes,
                                 .text_ranks = model->shares_texts ? &ranks_->groups.world : nullptr});
        if (!family.ok()) return family.status();
        model->family = *std::move(family);
        model_ = std::move(model);
        const bool texts_on_host = parameters.placement.text_encoders == control::ComponentPlacement::kCpu;
        adapters_ = std::make_unique<LoadedAdapters>(
            model_->family->adaptable(),
            models::AdapterPlace{.dtype = model_->family->dtype(),
                                 .device = device,
                                 .tensor = share.tensor,
                                 .text_encoders = encodes,
                                 .text_device = texts_on_host ? at::Device(at::kCPU) : device},
            IsFlow(model_->sampler));
        denoiser_ =
            std::make_unique<Denoiser>(*model_->family, ranks_->groups,
                                       DenoiserOptionsOf(parameters, place_.layout, stage_bounds, recorder_.get()));
        std::string digest;
        if (contents) {
          ASSIGN_OR_RETURN(digest, contents->Finish());
        }
        const int64_t weights = model_->family->weight_bytes();
        const int64_t prompts = encodes ? PromptCacheBytes(parameters) : 0;
        return control::Loaded{.seconds = watch.seconds(),
                               .weight_bytes = static_cast<uint64_t>(weights),
                               .memory_budget = BudgetAfter(weights, prompts, device),
                               .device_memory = MemoryOf(device),
                               .contents = std::move(digest)};
      },
      parameters.training);
}

absl::StatusOr<control::JobStarted> Engine::StartJob(uint64_t job, const control::JobParameters& parameters) {
  if (model_ == nullptr) return absl::FailedPreconditionError("no model is loaded");
  if (jobs_.contains(job)) return absl::AlreadyExistsError(absl::StrCat("job ", job, " exists already"));
  RETURN_IF_ERROR(CheckParameters(parameters, model_->description));
  return Guarded([&] { return Start(job, parameters); });
}

models::PromptRequest Engine::PromptOf(const control::JobParameters& parameters) const {
  const control::ImageSize generated = control::WorkOf(model_->description.cost, parameters).size;
  return {.prompt = parameters.prompt,
          .negative_prompt = parameters.negative_prompt,
          .options = parameters.options,
          .clean_caption = parameters.clean_caption,
          .max_sequence_length = parameters.max_sequence_length > 0 ? parameters.max_sequence_length
                                                                    : model_->description.default_max_sequence_length,
          .guidance_scale = parameters.guidance_scale,
          .height = generated.height,
          .width = generated.width};
}

absl::StatusOr<models::SharedAdapters> Engine::AdaptersOf(const control::JobParameters& parameters) {
  if (control::AdapterKey(parameters.adapters).empty()) {
    return trainer_ != nullptr ? trainer_->adapters() : models::SharedAdapters();
  }
  absl::StatusOr<models::SharedAdapters> adapters = adapters_->Sum(parameters.adapters);
  if (mesh_.world_size() > 1 && !OnEveryRank(adapters.ok()) && adapters.ok()) {
    return absl::AbortedError("loras: another rank cannot read an adapter of the job");
  }
  return adapters;
}

absl::StatusOr<int32_t> Engine::EncodePrompts(absl::Span<const control::JobParameters> jobs) {
  if (model_ == nullptr) return absl::FailedPreconditionError("no model is loaded");
  // Encoders that the ranks share out are always in memory, so prompts need not wait for one another.
  if (place_.rank_in_layout() != 0 || model_->shares_texts) return 0;
  return Guarded([&]() -> absl::StatusOr<int32_t> {
    std::vector<models::PromptRequest> prompts;
    for (const control::JobParameters& job : jobs) {
      if (!CheckParameters(job, model_->description).ok()) continue;
      absl::StatusOr<models::SharedAdapters> adapters = adapters_->Sum(job.adapters);
      if (!adapters.ok()) continue;  // its job will say why
      prompts.push_back(PromptOf(job));
      prompts.back().adapters = *std::move(adapters);
    }
    return static_cast<int32_t>(model_->family->EncodeAhead(prompts, ranks_->context));
  });
}

absl::StatusOr<SamplerConfig> Engine::SamplerOf(const control::JobParameters& parameters,
                                                const models::SharedAdapters& adapters) const {
  SamplerConfig config = model_->sampler;
  if (adapters != nullptr && !adapters->prediction_type.empty()) {
    config.prediction_type = PredictionTypeOf(adapters->prediction_type).value_or(config.prediction_type);
  } else if (trainer_ != nullptr) {
    config.prediction_type = trainer_->prediction_type();
  }
  if (parameters.sampler.empty()) return config;
  return WithSampler(config, parameters.sampler);
}

absl::StatusOr<control::JobStarted> Engine::Start(uint64_t id, const control::JobParameters& parameters) {
  models::Family& family = *model_->family;
  models::PromptRequest prompt = PromptOf(parameters);
  ASSIGN_OR_RETURN(prompt.adapters, AdaptersOf(parameters));
  const absl::StatusOr<SamplerConfig> sampler = SamplerOf(parameters, prompt.adapters);
  if (!sampler.ok()) return sampler.status();
  const control::ImageSize generated{.height = prompt.height, .width = prompt.width};
  const Stopwatch watch;
  absl::StatusOr<models::EncodedPrompt> encoded = absl::UnknownError("encoded by rank 0");
  if (EncodesPrompts(model_->shares_texts)) encoded = family.Encode(prompt, ranks_->context);
  if (mesh_.world_size() > 1 && !model_->shares_texts) {
    encoded = BroadcastPrompt(std::move(encoded), ranks_->groups.control, ranks_->groups.world, family.device());
  }
  if (!encoded.ok()) return encoded.status();
  const double encode_seconds = watch.seconds();

  Job job{.height = parameters.height, .width = parameters.width};
  if (!model_->description.binning_keeps_size) {
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
  DrawInitialLatents(job.denoise, family);
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

absl::StatusOr<std::vector<DenoiseJob*>> Engine::BatchOf(absl::Span<const uint64_t> jobs) {
  std::vector<DenoiseJob*> batch;
  for (const uint64_t id : jobs) {
    const auto it = jobs_.find(id);
    if (it == jobs_.end()) return absl::NotFoundError(absl::StrCat("job ", id, " does not exist"));
    DenoiseJob& job = it->second.denoise;
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

absl::Status Engine::ReserveMemory(std::span<DenoiseJob* const> batch) {
  // The host says nothing before its memory is used up.
  if (mesh_.world_size() == 1 || device_.is_cpu() || denoiser_->Continues(batch)) return absl::OkStatus();
  // Branches and heads are not taken as divided: a rank may hold all of them for a moment.
  const control::GroupShare share = {.sequence = ranks_->groups.sequence.size(),
                                     .images_share_passes = ImagesSharePasses(device_),
                                     .element_bytes = static_cast<int64_t>(c10::elementSize(model_->family->dtype()))};
  const control::ModelCost& cost = model_->description.cost;
  const models::TokenGrid& grid = batch[0]->geometry.grid;
  control::ImageWork most = {.size = {.height = grid.height * cost.token_side, .width = grid.width * cost.token_side}};
  for (const DenoiseJob* job : batch) {
    most.rows = std::max<int64_t>(most.rows, std::ssize(job->guidance.branches));
    for (const models::GuidanceBranch& branch : job->guidance.branches) {
      if (branch.row.text.defined()) most.text_tokens = std::max(most.text_tokens, branch.row.text.size(0));
    }
  }
  const double bytes = control::ActivationBytes(cost, most, std::ssize(batch), share);
  bool fits = true;
  try {
    const at::Tensor room = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device_));
  } catch (const c10::OutOfMemoryError&) {
    fits = false;
  }
  const at::Tensor verdicts = ranks_->groups.control.AllGather(
      at::full({1}, fits ? 1 : 0, at::kLong), std::vector<int64_t>(static_cast<size_t>(mesh_.world_size()), 1));
  return verdicts.all().item<bool>() ? absl::OkStatus() : OutOfDeviceMemory();
}

void Engine::WaitFor(const Mark& mark) const {
  const parallel::DeviceWait waiting(place_.segment.get(), place_.rank);
  if (ranks_->communicators != nullptr && ranks_->communicators->uses_nccl()) {
    ranks_->communicators->WaitUntil([&] { return mark.IsReached(); });
  } else {
    mark.Wait();
  }
}

absl::StatusOr<control::Stepping> Engine::Step(absl::Span<const uint64_t> jobs) {
  ASSIGN_OR_RETURN(const std::vector<DenoiseJob*> found, BatchOf(jobs));
  const std::vector<DenoiseJob*>& batch = found;
  return Guarded([&]() -> absl::StatusOr<control::Stepping> {
    const at::Device device = model_->family->device();
    RETURN_IF_ERROR(ReserveMemory(batch));
    const auto begun = std::make_shared<Mark>(device);
    denoiser_->Step(batch);
    const bool digests = mesh_.world_size() > 1 && denoiser_->has_latents();
    const at::Tensor states = ToHost(StatesOf(batch));
    const auto done = std::make_shared<Mark>(device);
    // On any thread.
    return [this, begun, done, states, digests, completed = batch[0]->completed()]() {
      return Guarded([&]() -> absl::StatusOr<control::Stepped> {
        WaitFor(*done);
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
                                .device_memory = MemoryOf(device_)};
      });
    };
  });
}

absl::StatusOr<control::Decoding> Engine::Decode(uint64_t job) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return absl::NotFoundError(absl::StrCat("job ", job, " does not exist"));
  const Job& found = it->second;
  return Guarded([&]() -> absl::StatusOr<control::Decoding> {
    denoiser_->Flush();
    if (!IsFinite(found.denoise)) return NoLongerFinite();
    const control::Decoded picture = {.height = static_cast<int32_t>(found.height),
                                      .width = static_cast<int32_t>(found.width),
                                      .completed = found.denoise.completed()};
    return [this, latents = found.denoise.latents, picture](control::RowSink rows) {
      return Guarded([&] { return MakePixels(latents, picture, rows); });
    };
  });
}

absl::StatusOr<control::Decoded> Engine::MakePixels(const at::Tensor& latents, control::Decoded picture,
                                                    control::RowSink rows) {
  const Stopwatch watch;
  const absl::StatusOr<at::Tensor> image = model_->family->Decode(latents.unsqueeze(0), ranks_->context);
  if (!image.ok()) {
    Poison(std::string(image.status().message()));  // the other ranks may wait for this one's rows
    return image.status();
  }
  if (place_.rank == 0) {
    const at::Tensor pixels = ToPixels(ResizeAndCrop(*image, picture.height, picture.width)).squeeze(0).cpu();
    const absl::Span<const uint8_t> bytes(pixels.const_data_ptr<uint8_t>(), static_cast<size_t>(pixels.numel()));
    RETURN_IF_ERROR(rows(0, bytes));
  }
  picture.channels = static_cast<int32_t>(image->size(1));
  picture.seconds = watch.seconds();
  return picture;
}

absl::StatusOr<control::LatentValues> Engine::Latents(uint64_t job) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return absl::NotFoundError(absl::StrCat("job ", job, " does not exist"));
  return Guarded([&]() -> absl::StatusOr<control::LatentValues> {
    denoiser_->Flush();
    return ToValues(it->second.denoise.latents);
  });
}

absl::StatusOr<control::LatentValues> Engine::Predict(uint64_t job, const control::LatentValues& latents,
                                                      absl::Span<const uint64_t> beside) {
  std::vector<uint64_t> jobs = {job};
  jobs.insert(jobs.end(), beside.begin(), beside.end());
  ASSIGN_OR_RETURN(const std::vector<DenoiseJob*> batch, BatchOf(jobs));
  DenoiseJob& denoise = *batch.front();
  if (at::IntArrayRef(latents.shape) != denoise.latents.sizes()) {
    return absl::InvalidArgumentError("the latents are not of the job's shape");
  }
  return Guarded([&]() -> absl::StatusOr<control::LatentValues> {
    denoiser_->Flush();
    const at::Tensor own = denoise.latents;
    const absl::Cleanup restore = [&] { denoise.latents = own; };
    denoise.latents = at::tensor(latents.values, at::kDouble).view(latents.shape).to(own.options());
    const at::Tensor prediction = denoiser_->Predict(batch)[0];
    return ToValues(prediction.view(latents.shape));
  });
}

absl::Status Engine::EndJob(uint64_t job) {
  if (!jobs_.contains(job)) return absl::OkStatus();
  const absl::Status flushed = Guarded([&] {
    denoiser_->Flush();  // it may be in the batch under way
    return absl::OkStatus();
  });
  jobs_.erase(job);
  if (jobs_.empty()) freed_memory_.Release();
  return flushed;
}

absl::StatusOr<control::TrainingStarted> Engine::StartTraining(const control::TrainingStart& start) {
  trainer_.reset();
  if (model_ == nullptr || !model_->trains) return absl::FailedPreconditionError("no model is loaded for training");
  return Guarded(
      [&]() -> absl::StatusOr<control::TrainingStarted> {
        ASSIGN_OR_RETURN(model_->described, Describe(model_->folder.path()));
        ASSIGN_OR_RETURN(trainer_, Trainer::Create(start, {.folder = model_->folder,
                                                           .description = model_->described,
                                                           .scheduler = model_->sampler,
                                                           .family = *model_->family,
                                                           .shard = {.rank = ranks_->groups.tensor.rank(),
                                                                     .size = ranks_->groups.tensor.size()},
                                                           .groups = ranks_->training}));
        return trainer_->started();
      },
      /*with_gradients=*/true);
}

template <class Function>
auto Engine::WithTrainer(const Function& function) -> decltype(function(std::declval<Trainer&>())) {
  if (trainer_ == nullptr) return absl::FailedPreconditionError("no training run has been started");
  return Guarded([&] { return function(*trainer_); }, /*with_gradients=*/true);
}

absl::StatusOr<control::SamplesPrepared> Engine::PrepareSamples(int64_t most) {
  return WithTrainer([&](Trainer& trainer) { return trainer.PrepareSamples(most); });
}

absl::StatusOr<control::Trained> Engine::Train() {
  return WithTrainer([](Trainer& trainer) { return trainer.Train(); });
}

absl::StatusOr<control::TrainingSaved> Engine::SaveTraining(bool exports) {
  return WithTrainer([&](Trainer& trainer) { return trainer.Save(exports); });
}

absl::StatusOr<control::TrainingSaved> Engine::ExportTraining(const std::string& path) {
  return WithTrainer([&](Trainer& trainer) { return trainer.ExportAdapterTo(path); });
}

absl::StatusOr<control::TrainingEvaluated> Engine::EvaluateTraining() {
  return WithTrainer([](Trainer& trainer) { return trainer.Evaluate(); });
}

std::unique_ptr<control::CommandHandler> MakeEngine(const WorkerRank& place) { return std::make_unique<Engine>(place); }

}  // namespace tessera::runtime

#include "runtime/engine/model_loader.h"

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fields/enum_names.h"
#include "base/files/crc32c.h"
#include "base/machine/machine_memory.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "base/time/steady_time.h"
#include "control/host/device.h"
#include "control/host/device_memory.h"
#include "control/model/main_memory.h"
#include "control/model/memory_fit.h"
#include "control/model/model_description.h"
#include "control/parameters/component_files.h"
#include "control/training/model_training.h"
#include "kernels/cpu/isa.h"
#include "kernels/device_runtimes.h"
#include "models/families/family_description.h"
#include "models/loading/load_options.h"
#include "models/loading/waiting_memory.h"
#include "models/precision.h"
#include "models/weights/load_meter.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/device/copy_rate.h"
#include "runtime/device/device.h"
#include "runtime/device/numa_binding.h"
#include "runtime/engine/model_info.h"

namespace tessera::runtime {
namespace {

int64_t PromptCacheBytes(const control::LoadParameters& parameters) {
  return static_cast<int64_t>(std::min<uint64_t>(parameters.prompt_cache_bytes, std::numeric_limits<int64_t>::max()));
}

// What is left when the cache of prompts is full. What is free counts in any case: some of the weights may be in the
// host's memory.
std::optional<control::MemoryBudget> BudgetAfter(int64_t weights, int64_t prompts, at::Device device,
                                                 std::optional<int64_t> limit) {
  std::optional<kernels::DeviceMemory> memory = ReadDeviceMemory(device);
  if (!memory) return std::nullopt;
  if (limit) {
    memory->total = std::min(memory->total, *limit);
    memory->free = std::min(memory->free, std::max<int64_t>(0, *limit - memory->used - memory->cached));
  }
  const int64_t free = std::max<int64_t>(0, memory->free - prompts);
  return control::MemoryBudget{
      .most = static_cast<uint64_t>(std::max({memory->total - weights - prompts, free, int64_t{1}})),
      .free = static_cast<uint64_t>(free)};
}

models::Offloaded OffloadedOf(control::Waiting waiting) {
  switch (waiting) {
    case control::Waiting::kModulations:
      return models::Offloaded::kModulations;
    case control::Waiting::kComponents:
      return models::Offloaded::kAll;
    case control::Waiting::kNothing:
      break;
  }
  return models::Offloaded::kNone;
}

constexpr int kMostChoices = 8;
constexpr double kSlowStepSeconds = 10;

// Returns control::SmallerStorage; nothing if the transformer is quantized on loading already.
std::optional<control::WeightStorage> SmallerStorage(const models::FamilyDescription& description,
                                                     const control::FitQuery& query, const control::FitDevice& device) {
  if (control::IsQuantizing(query.storage)) return std::nullopt;
  return control::SmallerStorage(description.weights, query, device);
}

// Returns how text encoders are read for each prompt because main memory cannot hold them.
control::EncoderReads ReadsOf(control::ComponentPlacement requested, control::ComponentPlacement chosen) {
  if (chosen == requested) return control::EncoderReads::kNone;
  return chosen == control::ComponentPlacement::kStreamed ? control::EncoderReads::kLayers
                                                          : control::EncoderReads::kWhole;
}

// Training encodes everything before its first step and keeps the encoders only for that time.
void ReleaseEncoders(control::Placement& placement) {
  if (placement.text_encoders == control::ComponentPlacement::kRank0) {
    placement.text_encoders = control::ComponentPlacement::kUnloaded;
  }
  if (placement.autoencoder == control::AutoencoderPlacement::kRank0) {
    placement.autoencoder = control::AutoencoderPlacement::kUnloaded;
  }
}

// Prints which weights wait in pageable memory, and the slower step that this predicts.
void ReportPageable(const models::WaitingMemory& memory, const control::MemoryFit& fit, double bytes_per_second) {
  if (memory.pageable_bytes() == 0) return;
  const control::PageableWeights weights{
      .bytes = memory.pageable_bytes(), .waiting_bytes = memory.bytes(), .bytes_per_second = bytes_per_second};
  std::fprintf(stderr, "memory: %s\n", control::PageableText(fit, weights).c_str());
}

void BindNear(const at::Device& device) {
  if (device.is_cuda()) std::fprintf(stderr, "%s\n", BindNearCudaDevice(device.index()).c_str());
}

}  // namespace

std::optional<control::DeviceMemory> MemoryOf(at::Device device) {
  const std::optional<kernels::DeviceMemory> memory = ReadDeviceMemory(device);
  if (!memory) return std::nullopt;
  return control::DeviceMemory{.total = static_cast<uint64_t>(memory->total),
                               .free = static_cast<uint64_t>(memory->free),
                               .used = static_cast<uint64_t>(memory->used),
                               .cached = static_cast<uint64_t>(memory->cached)};
}

ModelLoader::ModelLoader(const WorkerRank& place, Guard& guard, DeviceOpener open_device)
    : place_(place), guard_(guard), open_device_(std::move(open_device)), mesh_(MeshOf(place.layout)) {}

absl::StatusOr<control::ModelDescription> ModelLoader::Describe(const std::string& model,
                                                                const control::ComponentFiles& files) {
  ASSIGN_OR_RETURN(const models::ModelFolder folder, models::ModelFolder::OpenWith(model, files));
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

ModelLoader::DeviceShare ModelLoader::ShareOfDevice(int64_t free, int64_t needed) const {
  const std::string name = kernels::DeviceRuntimeOf(device_.type()).card(device_.index());
  const auto card = static_cast<int64_t>(base::Crc32c(name));
  // [ranks, 2]
  const at::Tensor all =
      ranks_->groups().control.AllGather(at::tensor({card, needed}, at::kLong).view({1, 2}),
                                         std::vector<int64_t>(static_cast<size_t>(mesh_.world_size()), 1));
  if (name.empty() || needed == 0 || base::Planted("ranks_on_a_card_plan_alone")) return {.bytes = free};
  const at::Tensor here = all.select(1, 0).eq(card);
  const int64_t together = all.select(1, 1).masked_select(here).sum().item<int64_t>();
  return {.bytes = static_cast<int64_t>(static_cast<double>(free) *
                                        (static_cast<double>(needed) / static_cast<double>(together))),
          .ranks = here.sum().item<int64_t>()};
}

bool ModelLoader::SharesTexts(const control::LoadParameters& parameters) const {
  return mesh_.world_size() > 1 && parameters.placement.text_encoders == control::ComponentPlacement::kSharded;
}

absl::StatusOr<models::LoadRequest> ModelLoader::RequestOf(const control::LoadParameters& parameters,
                                                           const models::FamilyDescription& description) const {
  models::LoadRequest request = {
      .dtype = parameters.dtype,
      .on_device = !device_.is_cpu(),
      .placement = parameters.placement,
      .encodes_prompts = EncodesPrompts(parameters),
      .ranks = mesh_.world_size(),
      .transformer_parts = mesh_.size(parallel::Axis::kPipe) * mesh_.size(parallel::Axis::kTensor),
      .quantize = parameters.quantize,
      .for_training = parameters.training,
      .offload = parameters.placement.offload == control::Offload::kAlways ? models::Offloaded::kAll
                                                                           : models::Offloaded::kNone,
      .run_bytes = parameters.training
                       ? 0
                       : RunBytes(description, parameters.dtype, mesh_.shape(),
                                  device_.is_cpu() ? control::DeviceKind::kCpu : control::DeviceKind::kCuda),
      .prompt_cache_bytes = PromptCacheBytes(parameters)};
  if (parameters.training && ReadDeviceMemory(device_) && parameters.placement.offload == control::Offload::kAuto) {
    ReleaseEncoders(request.placement);
  }
  if (parameters.blocks_to_swap > 0) {
    ASSIGN_OR_RETURN(const control::ModelDescription described, Describe(parameters.model, parameters.files));
    RETURN_IF_ERROR(control::CheckBlocksToSwap(parameters.blocks_to_swap, described));
    const models::WeightShare share =
        ShareOf(mesh_, place_.rank_in_layout(),
                StageBounds(described.transformer.block_flops, mesh_.size(parallel::Axis::kPipe)));
    const control::SwappedParameters swapped =
        control::SwappedParametersOf(described, parameters.blocks_to_swap, share.blocks.begin, share.blocks.end);
    request.waiting_parameters = static_cast<int64_t>(swapped.waiting) / share.tensor.size;
    request.buffer_parameters = static_cast<int64_t>(swapped.buffers) / share.tensor.size;
  }
  return request;
}

ModelLoader::FittedModel ModelLoader::ChooseWaiting(const models::LoadPlan& plan,
                                                    const control::LoadParameters& parameters,
                                                    const models::FamilyDescription& description,
                                                    const base::MachineMemory& memory, int64_t free) const {
  control::FitQuery query = FitQueryOf(description, parameters.dtype, mesh_.shape(), control::DeviceKind::kCuda);
  const models::WeightShare share =
      ShareOf(mesh_, place_.rank_in_layout(), StageBounds(description.block_flops, mesh_.size(parallel::Axis::kPipe)));
  query.storage = parameters.placement.weights;
  query.first_block = share.blocks.begin;
  // Blocks that are read from the files for each use do not wait in main memory.
  query.end_block = parameters.placement.stream_blocks ? share.blocks.begin : share.blocks.end;
  query.has_text_encoders =
      EncodesPrompts(parameters) && parameters.placement.text_encoders == control::ComponentPlacement::kRank0;
  query.has_autoencoder = parameters.placement.autoencoder == control::AutoencoderPlacement::kRank0;
  query.cached_bytes = EncodesPrompts(parameters) ? PromptCacheBytes(parameters) : 0;
  control::FitDevice device{.free_bytes = free};
  const auto choose = [&](const control::FitDevice& of) {
    const control::FitNeeds needs = control::NeedsOf(description.weights, query);
    FittedModel chosen{.plan = plan, .fit = control::ClosestFit(needs, of)};
    const control::MemoryFit& fit = chosen.fit;
    chosen.keeps_steps = fit.keeps_step;
    chosen.plan = models::WithWaiting(
        plan,
        {.offload = OffloadedOf(fit.waiting), .block_bytes = fit.transfer_bytes, .buffer_bytes = fit.buffer_bytes},
        memory);
    return chosen;
  };
  FittedModel chosen = choose(device);
  // The plan of loading also counts what the description does not know, such as the largest tensor twice.
  for (int i = 0; i < kMostChoices && chosen.plan.device.peak > free && device.free_bytes > 0; ++i) {
    device.free_bytes = std::min(device.free_bytes, chosen.fit.peak_bytes) - (chosen.plan.device.peak - free);
    chosen = choose(device);
  }
  if (chosen.plan.device.peak > free) {
    chosen.storage = SmallerStorage(description, query, {.free_bytes = free});
    return chosen;
  }
  if (chosen.plan.host.peak > memory.available()) {
    chosen.storage = control::StorageInMainMemory(description.weights, query, device, memory.available());
    return chosen;
  }
  if (!chosen.fit.blocks.empty()) {
    const DeviceRates rates = MeasureDeviceRates(device_, ScalarTypeOf(parameters.dtype));
    ReleaseDeviceMemory(device_);
    device.link_bytes_per_second = rates.copied_bytes_second;
    device.flops = rates.product_flops;
    chosen.pageable_bytes_per_second = rates.pageable_bytes_second;
    control::PredictTimes(device, query.step_flops, chosen.fit);
  }
  const control::MainMemoryNeed main = {
      .bytes = control::kProgramBytes + chosen.plan.host.peak,
      .reads = ReadsOf(plan.request.placement.text_encoders, chosen.plan.request.placement.text_encoders)};
  std::string text = absl::StrCat("memory: ", control::FitText(chosen.fit), "; ", control::MainMemoryText(main));
  if (chosen.fit.step_seconds() > kSlowStepSeconds) {
    const std::optional<control::WeightStorage> faster = SmallerStorage(description, query, device);
    if (faster) absl::StrAppend(&text, "; --weights ", base::EnumName(*faster), " is faster");
  }
  std::fprintf(stderr, "%s\n", text.c_str());
  return chosen;
}

absl::StatusOr<ModelLoader::FittedModel> ModelLoader::FitMemory(const models::ModelFolder& folder,
                                                                const control::LoadParameters& parameters,
                                                                const models::FamilyDescription& description) const {
  ASSIGN_OR_RETURN(models::LoadRequest request, RequestOf(parameters, description));
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
  DeviceShare share = ShareOfDevice(on_device ? on_device->free : 0, plan.device.peak);
  if (memory_limit_) share.bytes = std::min(share.bytes, *memory_limit_);
  if (on_device && parameters.training && parameters.placement.offload == control::Offload::kAuto &&
      plan.device.peak > share.bytes) {
    // The products of text encoders wait in main memory and pass through the device while captions are encoded.
    plan = models::WithWaiting(plan, {.offload = models::Offloaded::kAll}, memory);
  }
  FittedModel fitted{.plan = std::move(plan), .fit = {}};
  if (on_device && parameters.placement.offload == control::Offload::kAuto && !parameters.training) {
    fitted = ChooseWaiting(fitted.plan, parameters, description, memory, share.bytes);
  }
  fitted.keeps_steps = ranks_->OnEveryRank(fitted.keeps_steps);
  absl::Status fits =
      models::CheckFits(fitted.plan, memory, on_device ? std::optional<int64_t>(share.bytes) : std::nullopt);
  if (!fits.ok() && share.ranks > 1) {
    fits = absl::Status(fits.code(), absl::StrCat(fits.message(), "\n", share.ranks, " ranks share the device's ",
                                                  "memory, and only a part of the free memory is available to each"));
  }
  if (!fits.ok() && fitted.storage) {
    fits = absl::Status(fits.code(), absl::StrCat(fits.message(), "\nit is predicted to fit with --weights ",
                                                  base::EnumName(*fitted.storage)));
  }
  if (!ranks_->OnEveryRank(fits.ok()) && fits.ok())
    return absl::AbortedError("the model does not fit into memory on another rank");
  RETURN_IF_ERROR(fits);
  return fitted;
}

absl::Status ModelLoader::LimitMemory(const control::Placement& placement) {
  const std::optional<kernels::DeviceMemory> memory = ReadDeviceMemory(device_);
  if (placement.memory_limit.empty()) {
    if (memory_limit_ && memory) LimitDeviceMemory(device_, memory->total);
    memory_limit_.reset();
    return absl::OkStatus();
  }
  if (!memory) {
    return absl::InvalidArgumentError(
        "memory limit is for a device with memory of its own; leave it out, or choose --device cuda");
  }
  ASSIGN_OR_RETURN(const uint64_t limit, base::ParseByteText(placement.memory_limit));
  memory_limit_ = static_cast<int64_t>(limit - std::min(limit, control::kDriverBytes));
  LimitDeviceMemory(device_, *memory_limit_);
  return absl::OkStatus();
}

absl::Status ModelLoader::Check(const control::LoadParameters& parameters) const {
  // A row product's input is shared out over the tensor ranks, and its scale is that of the whole row.
  if (parameters.placement.products == control::Products::kFp8 && place_.layout.mesh.tensor > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("products is fp8, whose scales are of whole rows, which tensor=", place_.layout.mesh.tensor,
                     " divides; use ulysses or ring instead of tensor, or --products plain"));
  }
  if (!parameters.training) {
    if (parameters.blocks_to_swap > 0) return absl::InvalidArgumentError("blocks can be swapped only for training");
    return parameters.quantize ? absl::InvalidArgumentError("weights can be quantized only for training")
                               : absl::OkStatus();
  }
  if (place_.layout.mesh.cfg > 1) return absl::InvalidArgumentError("training has no guidance branches");
  if (parameters.placement.stream_blocks) return absl::InvalidArgumentError("streamed blocks cannot be trained");
  if (parameters.placement.weights != control::WeightStorage::kStored) {
    return absl::InvalidArgumentError("weights must be stored for training; quantize keeps the frozen ones in 8 bits");
  }
  if (parameters.placement.products != control::Products::kPlain) {
    return absl::InvalidArgumentError("products must be plain for training");
  }
  for (const auto placement : {control::ComponentPlacement::kSharded, control::ComponentPlacement::kStreamed}) {
    if (parameters.placement.text_encoders != placement) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("text_encoders is ", base::EnumName(placement), "; for training it must be rank0, cpu or unload"));
  }
  if (parameters.placement.offload == control::Offload::kAlways) {
    return absl::InvalidArgumentError("offload is always; it must be auto or never for training");
  }
  return absl::OkStatus();
}

void ModelLoader::Release() {
  ranks_.reset();
  ReleaseDeviceMemory(device_);
}

absl::StatusOr<std::unique_ptr<LoadedModel>> ModelLoader::Load(const control::LoadParameters& parameters) {
  const absl::Duration begin = base::SteadyNow();
  ASSIGN_OR_RETURN(const at::Device device, open_device_(parameters.device));
  if (device != device_) BindNear(device);
  device_ = device;
  guard_.SetDevice(device);
  RETURN_IF_ERROR(LimitMemory(parameters.placement));
  RETURN_IF_ERROR(guard_.Run([&]() -> absl::Status {
    ranks_ = std::make_unique<JoinedRanks>(device_, place_);
    ranks_->WarmUp(device_);
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(const models::ModelFolder folder, models::ModelFolder::OpenWith(parameters.model, parameters.files));
  ASSIGN_OR_RETURN(const models::FamilyEntry* entry, models::FindFamily(folder.class_name()));
  ASSIGN_OR_RETURN(models::FamilyDescription description, entry->describe(folder));
  RETURN_IF_ERROR(models::CheckProducts(folder, parameters.placement));
  ASSIGN_OR_RETURN(const FittedModel fitted, guard_.Run([&] { return FitMemory(folder, parameters, description); }));
  UseThreads(parameters.placement.threads);
  const auto read = [&] { return Read(folder, *entry, std::move(description), parameters, fitted); };
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, guard_.Run(read, parameters.training));
  model->loaded.seconds = absl::ToDoubleSeconds(base::SteadyNow() - begin);
  return model;
}

// Components that are read for each use are not part of loading.
std::shared_ptr<models::LoadMeter> ModelLoader::MakeMeter(const models::LoadPlan& plan) const {
  std::map<std::string, uint64_t, std::less<>> expected;
  for (const models::PlannedComponent& component : plan.components) {
    if (!component.is_transient()) expected[component.name] = static_cast<uint64_t>(component.stored_bytes);
  }
  return std::make_shared<models::LoadMeter>(
      std::move(expected), [segment = place_.segment, rank = place_.rank](uint64_t read, uint64_t total) {
        if (segment == nullptr) return;
        segment->Load(rank).total.store(total, std::memory_order_relaxed);
        segment->Load(rank).read.store(read, std::memory_order_relaxed);
      });
}

absl::StatusOr<std::unique_ptr<StepRecorder>> ModelLoader::OpenRecorder(const std::string& path) const {
  if (path.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<control::StepRecordWriter>> writer =
      control::StepRecordWriter::Create(path, place_.rank);
  if (!writer.ok()) {
    guard_.Poison(std::string(writer.status().message()));
    return writer.status();
  }
  return std::make_unique<StepRecorder>(*std::move(writer));
}

absl::StatusOr<std::unique_ptr<LoadedModel>> ModelLoader::Read(const models::ModelFolder& folder,
                                                               const models::FamilyEntry& entry,
                                                               models::FamilyDescription description,
                                                               const control::LoadParameters& parameters,
                                                               const FittedModel& fitted) const {
  std::unique_ptr<LoadedContents> contents;
  if (!parameters.training) {
    ASSIGN_OR_RETURN(control::ModelDescription described, Describe(parameters.model, parameters.files));
    contents = std::make_unique<LoadedContents>(folder, std::move(described), ranks_->groups().control);
  }
  auto model = std::make_unique<LoadedModel>(LoadedModel{.parameters = parameters,
                                                         .folder = folder,
                                                         .description = std::move(description),
                                                         .sampler = {},
                                                         .ranks = *ranks_,
                                                         .device = device_,
                                                         .shares_texts = SharesTexts(parameters),
                                                         .encodes_prompts = EncodesPrompts(parameters),
                                                         .keeps_steps = fitted.keeps_steps});
  ASSIGN_OR_RETURN(model->sampler, ReadSamplerConfig(folder, model->description.warnings));
  ASSIGN_OR_RETURN(model->recorder, OpenRecorder(parameters.record));
  model->stage_bounds = StageBounds(model->description.block_flops, mesh_.size(parallel::Axis::kPipe));
  model->share = ShareOf(mesh_, place_.rank_in_layout(), model->stage_bounds);
  model->share.waiting = parameters.training
                             ? control::SwappedBlocks(model->description.blocks, parameters.blocks_to_swap)
                             : fitted.fit.blocks;
  if (fitted.fit.buffers > 0) model->share.block_buffers = fitted.fit.buffers;
  const std::shared_ptr<models::LoadMeter> meter = MakeMeter(fitted.plan);
  const auto waiting_memory = std::make_shared<models::WaitingMemory>();
  ASSIGN_OR_RETURN(model->family, entry.load(folder.MeteredBy(meter),
                                             {.dtype = ScalarTypeOf(parameters.dtype),
                                              .device = device_,
                                              .placement = fitted.plan.request.placement,
                                              .prompt_cache_bytes = PromptCacheBytes(parameters),
                                              .for_training = parameters.training,
                                              .quantize = parameters.quantize,
                                              .offload = fitted.plan.request.offload,
                                              .waiting_memory = waiting_memory,
                                              .share = model->share,
                                              .encodes_prompts = model->encodes_prompts,
                                              .text_ranks = model->shares_texts ? &ranks_->groups().world : nullptr}));
  meter->Finish();
  ReportPageable(*waiting_memory, fitted.fit, fitted.pageable_bytes_per_second);
  model->contents = std::move(contents);
  const int64_t weights = model->family->weight_bytes();
  model->loaded.weight_bytes = static_cast<uint64_t>(weights);
  model->loaded.memory_budget =
      BudgetAfter(weights, model->encodes_prompts ? PromptCacheBytes(parameters) : 0, device_, memory_limit_);
  model->loaded.device_memory = MemoryOf(device_);
  return model;
}

}  // namespace tessera::runtime

// ModelLoader describes models and loads one rank's part of a model: it opens the device, joins the other ranks, checks
// that every rank's part fits in memory, and reads the weights.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/model/memory_fit.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/protocol/command_handler.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/loading/load_plan.h"
#include "parallel/plan/mesh.h"
#include "runtime/denoising/step_recorder.h"
#include "runtime/engine/guard.h"
#include "runtime/engine/joined_ranks.h"
#include "runtime/engine/loaded_contents.h"
#include "runtime/group/worker_rank.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::runtime {

// One rank's part of a model. Only ServedJobs and TrainingRun use it, from one thread.
struct LoadedModel {
  control::LoadParameters parameters;
  models::ModelFolder folder;
  models::FamilyDescription description;
  SamplerConfig sampler;
  JoinedRanks& ranks;  // the loader's
  at::Device device;
  models::WeightShare share;               // of the transformer
  std::vector<int> stage_bounds;           // of the pipe axis
  bool shares_texts = false;               // the ranks share the text encoders out
  bool encodes_prompts = false;            // this rank has text encoders, or its part of them
  bool keeps_steps = true;                 // there is memory for graphs of steps
  std::unique_ptr<StepRecorder> recorder;  // null: what blocks compute is not kept
  std::unique_ptr<models::Family> family;
  control::Loaded loaded;
  std::unique_ptr<LoadedContents> contents;  // null if the model is loaded for training
};

// Returns the memory of a device; nothing if the device does not report it.
std::optional<control::DeviceMemory> MemoryOf(at::Device device);

// Used by one thread.
class ModelLoader final {
 public:
  using DeviceOpener = std::function<absl::StatusOr<at::Device>(const std::string& name)>;

  // `place` and `guard` outlive this object; Load sets the guard's device.
  ModelLoader(const WorkerRank& place, Guard& guard, DeviceOpener open_device);

  // Reads configurations and the headers of weight files.
  static absl::StatusOr<control::ModelDescription> Describe(const std::string& model,
                                                            const control::ComponentFiles& files);

  // Returns an error if the ranks cannot load a model with these parameters, whatever the model.
  absl::Status Check(const control::LoadParameters& parameters) const;

  // Frees what the model that was loaded before has left; that model itself is destroyed already.
  void Release();

  // Collective over all ranks of the group. The model is to be destroyed before the next Release.
  absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const control::LoadParameters& parameters);

 private:
  // What is left for this rank of what is free on its card: ranks on one card load at the same time, and each has a
  // part in proportion to what it needs. All ranks call ShareOfDevice.
  struct DeviceShare {
    int64_t bytes = 0;
    int64_t ranks = 1;  // on the card
  };
  DeviceShare ShareOfDevice(int64_t free, int64_t needed) const;

  // Whether the ranks are to share the text encoders out; a single rank has nothing to share.
  bool SharesTexts(const control::LoadParameters& parameters) const;
  bool EncodesPrompts(const control::LoadParameters& parameters) const {
    return SharesTexts(parameters) || place_.rank_in_layout() == 0;
  }
  // Limits the memory of tensors on the device to the request's limit, or to no limit.
  absl::Status LimitMemory(const control::Placement& placement);
  absl::StatusOr<models::LoadRequest> RequestOf(const control::LoadParameters& parameters,
                                                const models::FamilyDescription& description) const;
  // How this rank's part of the model fits in memory.
  struct FittedModel {
    models::LoadPlan plan;
    control::MemoryFit fit;
    bool keeps_steps = true;               // the same on all ranks
    double pageable_bytes_per_second = 0;  // of copies from pageable memory; 0: not measured
    std::optional<control::WeightStorage>
        storage;  // in which the model is predicted to fit, if it does not fit as it is
  };
  // Returns which weights wait in main memory so that the rest fits into `free` bytes of the device, and the plan with
  // them; the choice that takes least where nothing fits.
  FittedModel ChooseWaiting(const models::LoadPlan& plan, const control::LoadParameters& parameters,
                            const models::FamilyDescription& description, const base::MachineMemory& memory,
                            int64_t free) const;
  // Returns, before anything is read, how this rank's part of the model fits in memory, if all ranks' parts do.
  absl::StatusOr<FittedModel> FitMemory(const models::ModelFolder& folder, const control::LoadParameters& parameters,
                                        const models::FamilyDescription& description) const;
  // Returns the meter of what is read by a load of this plan, which reports it to the segment.
  std::shared_ptr<models::LoadMeter> MakeMeter(const models::LoadPlan& plan) const;
  // Returns null if `path`, of the folder for records, is empty.
  absl::StatusOr<std::unique_ptr<StepRecorder>> OpenRecorder(const std::string& path) const;
  absl::StatusOr<std::unique_ptr<LoadedModel>> Read(const models::ModelFolder& folder, const models::FamilyEntry& entry,
                                                    models::FamilyDescription description,
                                                    const control::LoadParameters& parameters,
                                                    const FittedModel& fitted) const;

  const WorkerRank& place_;
  Guard& guard_;
  const DeviceOpener open_device_;
  const parallel::Mesh mesh_;
  at::Device device_ = at::kCPU;
  std::optional<int64_t> memory_limit_;  // bytes of the device's memory for tensors
  std::unique_ptr<JoinedRanks> ranks_;   // since Load, which opens the device
};

}  // namespace tessera::runtime

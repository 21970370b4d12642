// TrainerRuns runs Trainer from the files to the steps: it creates a folder of images with captions and trains on it on
// any mesh. Ranks are threads.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/loading/load_options.h"
#include "parallel/segment/mesh_groups.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/engine/model_info.h"
#include "runtime/training/trainer.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/test_folder.h"
#include "tests/support/thread_ranks.h"

namespace tessera {

inline std::string FileBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TrainerRuns {
 public:
  // The result of one rank.
  struct Result {
    absl::Status status;  // of the first call that failed
    control::TrainingStarted started;
    control::SamplesPrepared prepared;
    std::vector<std::string> warnings;  // from preparing the samples
    std::vector<control::Trained> steps;
    control::TrainingSaved saved;
  };

  // `model` is a pipeline of the golden sets.
  explicit TrainerRuns(const std::string& model) : model_(GoldenPipeline(model)) {
    const char* captions[] = {"a red house",        "two small houses by the sea in the evening",
                              "a green [trigger]",  "a tree",
                              "a boat on the lake", "clouds"};
    const char* pictures[] = {"source.png",       "orientation_5.png", "transparent.png",
                              "larger_64x48.png", "orientation_6.jpg", "orientation_2.jpg"};
    for (size_t i = 0; i < std::size(captions); ++i) {
      const std::filesystem::path picture = pictures[i];
      const std::string name = absl::StrCat("images/", i);
      files_.Write(name + ".txt", captions[i]);
      std::filesystem::copy_file("tests/pictures" / picture, files_ / (name + picture.extension().string()));
    }
  }

  const TestFolder& files() const { return files_; }
  void SetModel(const std::string& path) { model_ = path; }
  // `call` runs once per run, on one rank, when all ranks have read the images and none has encoded any.
  void SetBeforePreparing(std::function<void()> call) { before_preparing_ = std::move(call); }

  control::TrainConfig Config(const std::string& output) const {
    control::TrainConfig config;
    config.model = model_;
    config.output = files_ / output;
    config.seed = 5;
    config.trigger_word = "zzz";
    config.datasets = {{.folder_path = files_ / "images", .caption_dropout_rate = 0.3, .resolution = {64}}};
    config.network.type = control::NetworkType::kFull;
    config.train.batch_size = 2;
    config.train.lr = 1e-3;
    config.train.dtype = control::TrainDtype::kFp64;
    return config;
  }

  // Takes `steps` steps on every rank, and saves if `steps` is positive. `checkpoint` as in control::TrainingStart.
  std::vector<Result> Run(const control::TrainConfig& config, int steps, const std::string& checkpoint = "") const {
    return Run(config, checkpoint, [steps](runtime::Trainer& trainer, Result& result) -> absl::Status {
      RETURN_IF_ERROR(Train(trainer, steps, result));
      return steps > 0 ? Save(trainer, /*exports=*/true, result) : absl::OkStatus();
    });
  }

  // Runs `calls` on every rank after its trainer has prepared all samples.
  using Calls = std::function<absl::Status(runtime::Trainer& trainer, Result& result)>;
  std::vector<Result> Run(const control::TrainConfig& config, const std::string& checkpoint, const Calls& calls) const {
    const parallel::MeshShape shape = config.parallelism.mesh();
    const auto ranks = static_cast<int>(parallel::NumRanks(shape));
    const parallel::Mesh mesh = *parallel::Mesh::Create(shape, ranks);
    std::once_flag prepares;
    std::vector<Result> results(static_cast<size_t>(ranks));
    ThreadRanksOptions options{.groups = parallel::TrainingMeshGroups(mesh)};
    // Replicas of one rank have no world group, and RunRanks would add one of all ranks.
    if (ranks == shape.data) options.groups.push_back({.name = parallel::MeshGroupName::kWorld, .ranks = {0}});
    RunRanks(
        ranks,
        [&](ThreadRank& thread) {
          const int rank = thread.rank();
          const runtime::HostTrainingGroups communicators(at::kCPU, thread.shared_segment(), rank,
                                                          options.communicator);
          Result& result = results[static_cast<size_t>(rank)];
          const Calls prepared = [&](runtime::Trainer& trainer, Result& each) -> absl::Status {
            std::call_once(prepares, before_preparing_);
            RETURN_IF_ERROR(Prepare(trainer, each));
            return calls(trainer, each);
          };
          result.status = RunRank(config, checkpoint, mesh, rank, communicators.groups(), prepared, result);
        },
        options);
    return results;
  }

  static absl::Status Train(runtime::Trainer& trainer, int steps, Result& result) {
    for (int step = 0; step < steps; ++step) {
      ASSIGN_OR_RETURN(const control::Trained trained, trainer.Train());
      result.steps.push_back(trained);
    }
    return absl::OkStatus();
  }

  static absl::Status Save(runtime::Trainer& trainer, bool exports, Result& result) {
    ASSIGN_OR_RETURN(result.saved, trainer.Save(exports));
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kLongestFixed = 77;  // of CLIP, which pads every caption to it
  static constexpr int64_t kTextTokens = 37;    // odd, so that no axis divides it evenly

  static absl::Status RunRank(const control::TrainConfig& config, const std::string& checkpoint,
                              const parallel::Mesh& mesh, int rank, const runtime::TrainingGroups& groups,
                              const Calls& calls, Result& result) {
    ASSIGN_OR_RETURN(const models::ModelFolder folder, models::ModelFolder::Open(config.model));
    ASSIGN_OR_RETURN(const models::FamilyEntry* entry, models::FindFamily(folder.class_name()));
    ASSIGN_OR_RETURN(const models::FamilyDescription described, entry->describe(folder));
    ASSIGN_OR_RETURN(const runtime::SamplerConfig scheduler, runtime::ReadSamplerConfig(folder, result.warnings));
    ASSIGN_OR_RETURN(control::ModelDescription description,
                     runtime::DescribeModel(folder, entry->family, described, scheduler));
    // The captions are short, and padding would dominate the time of a step.
    if (description.default_max_sequence_length > kLongestFixed) description.default_max_sequence_length = kTextTokens;
    const models::WeightShare share =
        runtime::ShareOf(mesh, rank, runtime::StageBounds(described.block_flops, mesh.size(parallel::Axis::kPipe)));
    const at::ScalarType dtype = config.train.dtype == control::TrainDtype::kFp64 ? at::kDouble : at::kFloat;
    ASSIGN_OR_RETURN(
        const std::unique_ptr<models::Family> family,
        entry->load(folder, {.dtype = dtype, .for_training = true, .quantize = config.train.quantize, .share = share}));
    ASSIGN_OR_RETURN(const std::unique_ptr<runtime::Trainer> trainer,
                     runtime::Trainer::Create({.config = control::TrainConfigJson(config), .checkpoint = checkpoint},
                                              {.folder = folder,
                                               .description = description,
                                               .scheduler = scheduler,
                                               .family = *family,
                                               .shard = share.tensor,
                                               .groups = groups}));
    result.started = trainer->started();
    return calls(*trainer, result);
  }

  static absl::Status Prepare(runtime::Trainer& trainer, Result& result) {
    do {
      ASSIGN_OR_RETURN(result.prepared, trainer.PrepareSamples(4));
      const std::vector<std::string>& warnings = result.prepared.warnings;
      result.warnings.insert(result.warnings.end(), warnings.begin(), warnings.end());
    } while (result.prepared.prepared < result.prepared.samples);
    return absl::OkStatus();
  }

  TestFolder files_;
  std::function<void()> before_preparing_ = [] {};
  std::string model_;
};

}  // namespace tessera

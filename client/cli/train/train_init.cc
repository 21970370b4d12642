#include "client/cli/train/train_init.h"

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/fields/enum_names.h"
#include "base/macros/status_macros.h"
#include "client/cli/exit_code.h"
#include "client/cli/models/model_location.h"
#include "client/cli/option_text.h"
#include "client/cli/train/config_output.h"
#include "client/cli/train/config_template.h"
#include "control/model/model_description.h"
#include "control/training/config.h"
#include "control/training/dataset.h"
#include "control/training/model_training.h"
#include "control/training/trainable_model.h"
#include "server/api/field_checks.h"

namespace tessera::client {
namespace {

constexpr int64_t kMaxRank = 4096;

// Returns the network that the options describe.
absl::StatusOr<control::TrainNetwork> NetworkOf(const TrainInitOptions& options,
                                                const control::ModelDescription& model) {
  control::TrainNetwork network;
  if (!options.type.empty()) {
    RETURN_IF_ERROR(server::CheckName("--type", options.type, base::EnumNames<control::NetworkType>()));
    network.type = *base::EnumOf<control::NetworkType>(options.type);
  }
  if (!options.rank.empty() &&
      (!absl::SimpleAtoi(options.rank, &network.linear) || network.linear < 1 || network.linear > kMaxRank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank is ", server::QuotedValue(options.rank), "; valid values are 1 to ", kMaxRank));
  }
  network.linear_alpha = static_cast<double>(network.linear);
  network.target_modules = control::DefaultTargetModules(model);
  return network;
}

// Scans the folder. Invalid images are left out instead of refused, so that all problems are reported at once.
absl::StatusOr<control::TrainingSet> LookAtImages(const control::TrainConfig& config,
                                                  const control::ModelDescription& model) {
  control::TrainConfig skipping = config;
  for (control::TrainDataset& dataset : skipping.datasets) dataset.bad_images = control::BadImages::kSkip;
  return control::ScanDatasets(control::DatasetOptionsOf(skipping, model));
}

}  // namespace

absl::Status InitTraining(const TrainInitOptions& options, Interrupts& interrupts) {
  if (options.images.empty()) {
    return absl::InvalidArgumentError("--images is missing; it must be a folder with images");
  }
  ASSIGN_OR_RETURN(const std::string output, ConfigOutput(options.output));
  ASSIGN_OR_RETURN(const WorkerSession::Options session, SessionOptions(options.model));
  ASSIGN_OR_RETURN(const std::string path,
                   At(Stage::kModel, FindModel(options.model.model, options.model.model_folders)));
  ASSIGN_OR_RETURN(const control::ModelDescription model,
                   At(Stage::kModel, WorkerSession::DescribeAlone(session, interrupts, path)));
  RETURN_IF_ERROR(control::CheckTrainable(model.pictures));

  control::TrainConfig config;
  config.model = path;
  config.output = absl::StrCat("train-", ModelName(path));
  config.seed = 42;
  config.trigger_word = options.trigger_word;
  config.datasets = {{.folder_path = options.images,
                      .control_path = options.control,
                      .resolution = {control::DefaultResolution(model)}}};
  ASSIGN_OR_RETURN(config.network, NetworkOf(options, model));
  if (!options.steps.empty()) {
    ASSIGN_OR_RETURN(config.train.steps, ParseInteger("--steps", options.steps));
  }
  if (model.pictures.required && options.control.empty() &&
      !std::filesystem::exists(std::filesystem::path(options.images) / control::kMetadata)) {
    return absl::InvalidArgumentError(
        "--control is missing; the model edits pictures: name a folder that has one for each image, with its name");
  }
  ASSIGN_OR_RETURN(const control::TrainingSet images, LookAtImages(config, model));

  const std::string text = ConfigTemplate({.config = config, .model = model, .images = images});
  // The typed values may be invalid, such as a name that is not valid text.
  if (const absl::StatusOr<control::TrainConfig> read = control::ParseTrainConfig(text); !read.ok())
    return read.status();
  if (const absl::Status trained = control::CheckDistillation(config, model); !trained.ok()) {
    std::fprintf(stderr, "warning: %s\n", std::string(trained.message()).c_str());
  }
  for (const std::string& warning : images.Warnings()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  const size_t samples = images.samples.size(), buckets = images.buckets.size();
  return WriteConfig(output, text,
                     absl::StrCat(samples, samples == 1 ? " image" : " images", " in ", buckets,
                                  buckets == 1 ? " bucket" : " buckets"));
}

}  // namespace tessera::client

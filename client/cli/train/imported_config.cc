#include "client/cli/train/imported_config.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::client {

std::string WithoutPoint(std::string_view extension) {
  if (extension.starts_with('.')) extension.remove_prefix(1);
  return std::string(extension);
}

void ImportOptimizer(const std::string& key, ForeignConfig& foreign, control::TrainConfig& config) {
  const std::optional<std::string> typed = foreign.Text(key);
  if (!typed.has_value()) return;
  const std::string name = absl::AsciiStrToLower(*typed);
  if (name == "adamw" || name == "torch.optim.adamw") return;
  if (absl::StrContains(name, "adamw")) {
    foreign.Note(key, "AdamW is used, with moments in fp32; parallelism.zero: 1 divides them among data ranks");
    return;
  }
  foreign.Note(key, absl::StrCat("AdamW is used, the only optimizer; train.lr is ", config.train.lr,
                                 ", which may suit another one"));
}

void ImportDtype(const std::string& key, ForeignConfig& foreign, control::TrainConfig& config) {
  const std::optional<std::string> typed = foreign.Text(key);
  if (!typed.has_value()) return;
  if (*typed == "fp32" || *typed == "float32" || *typed == "float" || *typed == "no") {
    config.train.dtype = control::TrainDtype::kFp32;
  } else if (*typed == "bf16" || *typed == "bfloat16") {
    config.train.dtype = control::TrainDtype::kBf16;
  } else {
    foreign.Note(key, "bf16 is used; train.dtype may be bf16, fp32 or fp64");
  }
}

void ImportSchedule(const std::string& key, ForeignConfig& foreign, control::TrainConfig& config) {
  const std::optional<std::string> name = foreign.Text(key);
  if (!name.has_value() || *name == "constant" || *name == "constant_with_warmup") return;
  if (*name == "cosine") {
    config.train.lr_scheduler = control::LearningRateSchedule::kCosine;
  } else {
    foreign.Note(key, "constant is used; train.lr_scheduler may be constant, cosine or warmup_stable_decay");
  }
}

absl::StatusOr<ImportedConfig> ImportConfig(const std::string& text, const std::string& path, const std::string& model,
                                            const ImportFiles& files) {
  ASSIGN_OR_RETURN(const base::Json root, ParseForeign(text, path));
  ImportedConfig imported;
  const base::Json* const config = root.Find("config");
  if (config != nullptr && config->Find("process") != nullptr) {
    ForeignConfig foreign(root);
    imported.program = "ai-toolkit";
    RETURN_IF_ERROR(ImportAiToolkit(foreign, imported));
    imported.notes = foreign.Finish();
  } else {
    // sd-scripts reads its settings without their sections, but not the sections of a file of images.
    const bool is_of_images = root.Find("datasets") != nullptr;
    ForeignConfig foreign(root, "", /*drops_sections=*/!is_of_images);
    imported.program = "kohya's sd-scripts";
    if (!is_of_images && !HasKohyaArguments(foreign)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": it is no configuration of ai-toolkit, which has config.process, and none of kohya's ",
                       "sd-scripts, which names pretrained_model_name_or_path, dataset_config or datasets"));
    }
    RETURN_IF_ERROR(ImportKohya(foreign, files, imported));
    const std::vector<std::string> notes = foreign.Finish();
    imported.notes.insert(imported.notes.end(), notes.begin(), notes.end());
  }
  control::TrainConfig& made = imported.config;
  if (!model.empty()) made.model = model;
  if (made.model.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": it names no model; name one with --model"));
  }
  if (made.output.empty()) made.output = "train-imported";
  if (made.sample.prompts.empty()) made.sample.sample_every = 0;
  const absl::StatusOr<control::TrainConfig> valid = control::ParseTrainConfig(control::TrainConfigJson(made));
  if (!valid.ok()) {
    const std::string message(valid.status().message());
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", message.substr(0, message.rfind(" (line "))));
  }
  return imported;
}

}  // namespace tessera::client

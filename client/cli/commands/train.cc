#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/model_options.h"
#include "client/cli/train/train_import.h"
#include "client/cli/train/train_init.h"
#include "client/cli/train/training_run.h"

namespace tessera::client {
namespace {

constexpr char kInit[] = "init";
constexpr char kImport[] = "import";

struct TrainOptions {
  std::string target, file;
  TrainInitOptions init;  // its model and output hold the options of all
  TrainingRunOptions run;
};

// The actions of the command, as bits.
enum Action : unsigned { kOfRun = 1, kOfInit = 2, kOfImport = 4 };

Action ActionOf(const TrainOptions& options) {
  return options.target == kInit ? kOfInit : options.target == kImport ? kOfImport : kOfRun;
}

// Refuses options that do not apply to the chosen action.
absl::Status CheckFits(const TrainOptions& options) {
  const Action action = ActionOf(options);
  for (const auto& [name, typed, of] :
       {std::tuple("FILE", !options.file.empty(), unsigned{kOfImport}),
        {"--images", !options.init.images.empty(), kOfInit},
        {"--control", !options.init.control.empty(), kOfInit},
        {"--model", !options.init.model.model.empty(), kOfInit | kOfImport},
        {"--output", !options.init.output.empty(), kOfInit | kOfImport},
        {"--trigger-word", !options.init.trigger_word.empty(), kOfInit},
        {"--type", !options.init.type.empty(), kOfInit},
        {"--rank", !options.init.rank.empty(), kOfInit},
        {"--steps", !options.init.steps.empty(), kOfInit},
        {"--resume", !options.run.resume.empty(), kOfRun},
        {"--dry-run", options.run.dry_run, kOfRun},
        {"--device", !options.init.model.device.empty(), kOfRun},
        {"--threads", !options.init.model.text(&control::Placement::threads).empty(), kOfRun},
        {"--json", options.run.json, kOfRun},
        {"--quiet", options.run.quiet, kOfRun}}) {
    if (!typed || (of & action) != 0) continue;
    if (action != kOfRun) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is for ", of == kOfRun ? "a run" : "another action",
                                                     ", not for train ", options.target));
    }
    return absl::InvalidArgumentError(
        of == kOfImport ? absl::StrCat(name, " is for train import; a run has one configuration")
                        : absl::StrCat(name, " is for train init; a run has it in its configuration"));
  }
  return absl::OkStatus();
}

ExitCode Train(const TrainOptions& options, Interrupts& interrupts) {
  absl::Status status = CheckFits(options);
  if (status.ok() && ActionOf(options) == kOfRun) {
    TrainingRunOptions run = options.run;
    run.config = options.target;
    run.model = options.init.model;
    return RunTraining(run, interrupts);
  }
  if (status.ok() && ActionOf(options) == kOfImport) {
    status = ImportTraining({.file = options.file, .model = options.init.model.model, .output = options.init.output});
  } else if (status.ok()) {
    status = InitTraining(options.init, interrupts);
  }
  if (status.ok()) return ExitCode::kOk;
  return Finish(MakeReporter({.json = options.run.json, .quiet = true}), interrupts, status);
}

}  // namespace

CommandRun AddTrain(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  TrainInitOptions& init = options->init;
  AddText(
      app,
      {.names = "target",
       .help = "Configuration of a run, a YAML file; or init: write one for a model and a folder of images; or import: "
               "write one from a file of another program",
       .type = "CONFIG|init|import",
       .required = true},
      options->target);
  AddText(app,
          {.names = "file",
           .help = "For import: a configuration of ai-toolkit (YAML, JSON) or kohya's sd-scripts (TOML, JSON)",
           .type = "FILE"},
          options->file);
  BeginGroup(app, "Run");
  AddText(app, {"--resume", "Continue from a checkpoint: the newest of the run's output, or this folder", "latest|DIR"},
          options->run.resume);
  AddFlag(app, "--dry-run", "Print what the run will do, the memory and the time it will need, and train nothing",
          options->run.dry_run);
  AddText(app, {"--device", "Where it runs: cuda is a GPU for each rank (default: cpu)", "cpu|cuda|cuda:N|GPU-UUID"},
          init.model.device);
  AddText(app, {"--threads", "CPU threads (default: all)", "N"}, init.model.text(&control::Placement::threads));
  AddFlag(app, "--json", "One JSON object a line", options->run.json);
  AddFlag(app, "-q,--quiet", "Print only the paths of saved files", options->run.quiet);
  AddModelOption(app, init.model);
  BeginGroup(app, "init and import");
  AddText(app, {"--images", "Folder with the images and with metadata.jsonl or caption files", "DIR"}, init.images);
  AddTexts(
      app,
      {"--control", "Folder with a picture for each image, by its name, that the model edits; several in order", "DIR"},
      init.control);
  AddText(app, {"-o,--output", "File to write, which must be new; - is standard output (default: train.yaml)", "FILE"},
          init.output);
  AddText(app, {"--trigger-word", "Word that stands for what is trained (default: none)"}, init.trigger_word);
  AddText(app, {"--type", "An adapter, or all weights (default: lora)", "lora|full"}, init.type);
  AddText(app, {"--rank", "Rank of the adapter (default: 16)", "N"}, init.rank);
  AddText(app, {"--steps", "Steps of the optimizer (default: 1000)", "N"}, init.steps);
  AddWorkerOptions(app, init.model);
  return [options](Interrupts& interrupts) { return Train(*options, interrupts); };
}

}  // namespace tessera::client

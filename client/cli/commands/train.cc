#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/model_options.h"
#include "client/cli/train/train_init.h"
#include "client/cli/train/training_run.h"

namespace tessera::client {
namespace {

constexpr char kInit[] = "init";

struct TrainOptions {
  std::string target;
  TrainInitOptions init;  // its model holds the options of both
  TrainingRunOptions run;
};

// Refuses options that do not apply to the chosen action.
absl::Status CheckFits(const TrainOptions& options) {
  const bool init = options.target == kInit;
  for (const auto& [name, typed, of_init] :
       {std::tuple("--images", !options.init.images.empty(), true),
        {"--model", !options.init.model.model.empty(), true},
        {"--output", !options.init.output.empty(), true},
        {"--trigger-word", !options.init.trigger_word.empty(), true},
        {"--type", !options.init.type.empty(), true},
        {"--rank", !options.init.rank.empty(), true},
        {"--steps", !options.init.steps.empty(), true},
        {"--resume", !options.run.resume.empty(), false},
        {"--dry-run", options.run.dry_run, false},
        {"--device", !options.init.model.device.empty(), false},
        {"--threads", !options.init.model.text(&control::Placement::threads).empty(), false},
        {"--json", options.run.json, false},
        {"--quiet", options.run.quiet, false}}) {
    if (!typed || of_init == init) continue;
    return absl::InvalidArgumentError(of_init
                                          ? absl::StrCat(name, " is for train init; a run has it in its configuration")
                                          : absl::StrCat(name, " is for a run, not for train init"));
  }
  return absl::OkStatus();
}

ExitCode Train(const TrainOptions& options, Interrupts& interrupts) {
  absl::Status status = CheckFits(options);
  if (status.ok() && options.target != kInit) {
    TrainingRunOptions run = options.run;
    run.config = options.target;
    run.model = options.init.model;
    return RunTraining(run, interrupts);
  }
  if (status.ok()) status = InitTraining(options.init, interrupts);
  if (status.ok()) return ExitCode::kOk;
  return Finish(MakeReporter({.json = options.run.json, .quiet = true}), interrupts, status);
}

}  // namespace

CommandRun AddTrain(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  TrainInitOptions& init = options->init;
  AddText(app,
          {.names = "target",
           .help = "Configuration of a run, a YAML file; or init: write one for a model and a folder of images",
           .type = "CONFIG|init",
           .required = true},
          options->target);
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
  BeginGroup(app, "init");
  AddText(app, {"--images", "Folder with the images and with metadata.jsonl or caption files", "DIR"}, init.images);
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

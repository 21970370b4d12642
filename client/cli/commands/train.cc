#include <memory>
#include <string>

#include "client/cli/command.h"
#include "client/cli/models/model_options.h"
#include "client/cli/output/reporter.h"
#include "client/cli/train/train_init.h"

namespace tessera::client {
namespace {

struct TrainOptions {
  std::string target;
  TrainInitOptions init;
};

std::string ProblemOfTarget(const std::string& typed) { return typed == "init" ? "" : "the value must be init"; }

ExitCode Train(const TrainOptions& options, Interrupts& interrupts) {
  const absl::Status status = InitTraining(options.init, interrupts);
  if (status.ok()) return ExitCode::kOk;
  return Finish(MakeReporter({.quiet = true}), interrupts, status);
}

}  // namespace

CommandRun AddTrain(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  TrainInitOptions& init = options->init;
  AddText(app,
          {.names = "target",
           .help = "init: write a configuration for a model and a folder of images",
           .type = "init",
           .required = true,
           .problem = ProblemOfTarget},
          options->target);
  AddModelOption(app, init.model);
  BeginGroup(app, "init");
  AddText(app, {"--images", "Folder with the images, and metadata.jsonl or captions beside them", "DIR"}, init.images);
  AddText(app, {"-o,--output", "File to write, which must be new; - is standard output (default: train.yaml)", "FILE"},
          init.output);
  AddText(app, {"--trigger-word", "Word that stands for what is trained (default: none)"}, init.trigger_word);
  AddText(app, {"--type", "An adapter, or all weights (default: lora)", "lora|full"}, init.type);
  AddText(app, {"--rank", "Rank of the adapter (default: 16)", "N"}, init.rank);
  AddWorkerOptions(app, init.model);
  return [options](Interrupts& interrupts) { return Train(*options, interrupts); };
}

}  // namespace tessera::client

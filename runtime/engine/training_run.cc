#include "runtime/engine/training_run.h"

#include "base/macros/status_macros.h"

namespace tessera::runtime {

absl::StatusOr<std::unique_ptr<TrainingRun>> TrainingRun::Start(const control::TrainingStart& start,
                                                                LoadedModel& model) {
  std::unique_ptr<TrainingRun> run(new TrainingRun());
  ASSIGN_OR_RETURN(run->description_, ModelLoader::Describe(model.folder.path(), model.parameters.files));
  const parallel::Communicator& tensor = model.ranks.groups().tensor;
  ASSIGN_OR_RETURN(run->trainer_, Trainer::Create(start, {.folder = model.folder,
                                                          .description = run->description_,
                                                          .scheduler = model.sampler,
                                                          .family = *model.family,
                                                          .shard = {.rank = tensor.rank(), .size = tensor.size()},
                                                          .groups = model.ranks.training()}));
  return run;
}

}  // namespace tessera::runtime

#include "server/serving/batch_proof.h"

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/protocol/job_commands.h"
#include "server/verification/latent_distance.h"

namespace tessera::server {

bool PredictionProof::IsProven(const control::JobStarted& started, size_t tasks) const {
  return proven_.contains({started.generated_height, started.generated_width, tasks});
}

absl::StatusOr<bool> PredictionProof::Prove(const std::vector<TaskId>& tasks, const control::JobStarted& started) {
  ASSIGN_OR_RETURN(const control::LatentValues latents, workers_.Call(control::ReadLatents{.job = tasks[0]}));
  ASSIGN_OR_RETURN(const control::LatentValues alone,
                   workers_.Call(control::PredictFrom{.job = tasks[0], .latents = latents}));
  ASSIGN_OR_RETURN(const control::LatentValues in_batch,
                   workers_.Call(control::PredictFrom{
                       .job = tasks[0], .latents = latents, .others = {tasks.begin() + 1, tasks.end()}}));
  const double distance = RelativeDistance(in_batch, alone);
  if (distance <= bound_) {
    proven_.insert({started.generated_height, started.generated_width, tasks.size()});
    return true;
  }
  log_(base::LogLine(base::LogLevel::kWarning,
                     absl::StrCat("group ", group_, ": ", tasks.size(), " images of ", started.generated_width, "x",
                                  started.generated_height, " change each other by ", distance,
                                  " in a batch; images of this size are generated one at a time")));
  return false;
}

}  // namespace tessera::server

#include "control/parameters/job_parameters.h"

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"

namespace tessera::control {

absl::Status CheckRules(const JobParameters& job) {
  const SkipLayerGuidance& skip = job.options.skip_layers;
  if (skip.start > skip.stop) {
    return base::ErrorOfField("skip_layer_start",
                              absl::StrCat(" is ", skip.start, "; valid values are at most the stop, ", skip.stop));
  }
  return absl::OkStatus();
}

}  // namespace tessera::control

#include "runtime/engine/run_memory.h"

#include <cmath>

#include "control/host/device.h"
#include "control/model/group_share.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/placement.h"

namespace tessera::runtime {

int64_t RunBytes(const models::FamilyDescription& model, control::Dtype dtype, const parallel::MeshShape& mesh,
                 control::DeviceKind device) {
  const control::JobParameters job = {.height = static_cast<int32_t>(model.default_height),
                                      .width = static_cast<int32_t>(model.default_width),
                                      .guidance_scale = model.default_guidance_scale,
                                      .resolution_binning = model.default_resolution_binning};
  return static_cast<int64_t>(std::ceil(control::PeakBytes(model.cost, control::WorkOf(model.cost, job), /*images=*/1,
                                                           control::ShareOf(mesh, device, dtype))));
}

}  // namespace tessera::runtime

#include "server/api/served_model.h"

#include "control/model/model_description.h"

namespace tessera::server {

std::shared_ptr<const control::ModelDescription> NoDescription() {
  static const auto* description = new auto(std::make_shared<const control::ModelDescription>());
  return *description;
}

}  // namespace tessera::server

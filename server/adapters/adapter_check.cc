#include "server/adapters/adapter_check.h"

#include "control/model/model_description.h"

namespace tessera::server {

absl::StatusOr<models::AdapterOrigin> CheckAdapterFits(const std::string& path, const std::string& name,
                                                       const control::ModelDescription& model) {
  if (model.products.empty()) return models::AdapterOrigin();
  models::AdaptableModel adaptable = {
      .originals = base::EnumOf<models::OriginalNames>(model.original_names).value_or(models::OriginalNames::kNone)};
  for (const control::MatrixProduct& product : model.products) {
    models::ProductSpec spec = {.name = product.name, .out = product.out, .in = product.in};
    spec.aliases = product.aliases;
    adaptable.components[product.component].push_back(std::move(spec));
  }
  return models::CheckAdapter(path, name, adaptable);
}

}  // namespace tessera::server

#include "models/param_table.h"

#include <utility>

#include "kernels/ops.h"

namespace tessera {

at::Tensor ParamTable::Add(ParamSpec spec) {
  at::Tensor storage = at::empty(spec.shape, options_);
  params_.push_back({.spec = std::move(spec), .storage = storage});
  return storage;
}

at::Tensor ParamTable::AddPacked(std::vector<ParamSpec> specs) {
  std::vector<int64_t> shape = specs.at(0).shape;
  shape[0] = 0;
  for (const ParamSpec& spec : specs) shape[0] += spec.shape[0];
  at::Tensor storage = at::empty(shape, options_);
  int64_t offset = 0;
  for (ParamSpec& spec : specs) {
    const int64_t rows = spec.shape[0];
    params_.push_back({.spec = std::move(spec), .storage = storage, .offset = offset});
    offset += rows;
  }
  return storage;
}

std::shared_ptr<at::Tensor> ParamTable::AddProduct(std::vector<ParamSpec> specs) {
  products_.push_back(std::make_shared<at::Tensor>(AddPacked(std::move(specs))));
  return products_.back();
}

void ParamTable::PackForInference() {
  for (const std::shared_ptr<at::Tensor>& product : products_) {
    at::Tensor packed = PackWeight(*product);
    if (packed.is_same(*product)) continue;
    std::erase_if(params_, [&](const Param& param) { return param.storage.is_same(*product); });
    *product = std::move(packed);
  }
}

int64_t ParamTable::bytes() const {
  int64_t total = 0;
  for (const Param& param : params_) total += param.Value().nbytes();
  return total;
}

}  // namespace tessera

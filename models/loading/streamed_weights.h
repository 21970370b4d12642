// StreamedWeights leaves the weights of a component in its files and reads each part when it is used, so that memory
// holds only the parameters outside the blocks and one block.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "models/loading/param_table.h"
#include "models/loading/weight_residency.h"
#include "models/weights/weight_folder.h"

namespace tessera::models {

class StreamedWeights final : public WeightResidency {
 public:
  // The parameters of the table have no memory (WeightShare::streamed), and CheckWeights has returned OK for them.
  StreamedWeights(std::shared_ptr<const WeightFolder> folder, const ParamTable& table);

  // Throws WeightReadError if the files cannot be read or were written to since they were opened.
  void Bring(int part) override;
  void Release(int part) override;

 private:
  // A storage of the model, in which several parameters may be packed.
  struct Storage {
    at::Tensor values;  // shares the memory only, neither version counter nor gradient
    int64_t bytes = 0;
  };
  struct Part {
    std::vector<Storage> storages;
    std::vector<Param> params;
    int uses = 0;
  };

  static void AddStorage(Part& part, const at::Tensor& values);

  const std::shared_ptr<const WeightFolder> folder_;
  const at::ScalarType dtype_;
  std::map<int64_t, Part> parts_;
};

}  // namespace tessera::models

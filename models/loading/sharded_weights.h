// ShardedWeights shares the weights of a model out by rows over the data ranks (Zhao et al., 2023: PyTorch FSDP; ZeRO,
// stage 3): a rank keeps its rows of every parameter, and gathers the others while a part of the model runs. Eight-bit
// rows are kept with their scales.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/loading/param_table.h"
#include "models/loading/row_span.h"
#include "models/loading/weight_residency.h"
#include "parallel/communicator.h"

namespace tessera::models {

// Bring and Release are collective over all data ranks. In addition to its rows a rank holds the brought parts and,
// while it brings a part, the message that contains it.
class ShardedWeights final : public WeightResidency {
 public:
  // Takes every parameter's rows and frees the storages' memory: from then on the model has weights only between Bring
  // and Release. The parameters are all of the model's, in the same order on all ranks; `ranks` outlives this object.
  ShardedWeights(std::span<const Param> params, parallel::Communicator& ranks);

  void Bring(int part) override;
  void Release(int part) override;

  parallel::Communicator& ranks() const { return ranks_; }
  // Returns this rank's rows of a parameter, in the model's dtype. Their contents become the weights when their part is
  // brought next.
  at::Tensor OwnRows(const Param& param) const { return own_rows_.at(param.spec.name); }

 private:
  // A storage of the model, in which several parameters may be packed.
  struct Storage {
    at::Tensor values;  // shares the memory only, neither version counter nor gradient
    int64_t bytes = 0;
  };
  // Parameters of one dtype, which are gathered together. A parameter's scales are an additional parameter.
  struct Message {
    std::vector<size_t> storage_of;  // by parameter
    std::vector<Param> params;
    at::Tensor own;                 // this rank's rows of all of them, concatenated
    std::vector<int64_t> elements;  // of the same on every rank
  };
  struct Part {
    std::vector<Storage> storages;
    std::map<at::ScalarType, Message> messages;
    int uses = 0;
  };

  static void AddParam(Part& part, const Param& param);
  void Keep(Message& message);
  void Gather(const Part& part, const Message& message);

  parallel::Communicator& ranks_;
  std::map<int64_t, Part> parts_;
  std::map<std::string, at::Tensor> own_rows_;  // views of Message::own
};

// Whether the weights are shared out.
bool AreTaken(std::span<const Param> params);

}  // namespace tessera::models

// ShardedWeights shares the weights of a component out by rows over ranks (Zhao et al., 2023: PyTorch FSDP; ZeRO, stage
// 3): a rank keeps its rows of every parameter, and gathers the others while a part of the component runs. A model that
// is trained is shared out over its data ranks, a text encoder over all ranks. Eight-bit rows are kept with their
// scales.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/loading/param_table.h"
#include "models/loading/row_span.h"
#include "models/loading/weight_residency.h"
#include "models/weights/weight_folder.h"
#include "parallel/communicator.h"

namespace tessera::models {

class LoadMeter;  // models/weights/load_meter.h

// Bring and Release are collective over the ranks. In addition to its rows a rank holds the brought parts and,
// while it brings a part, the message that contains it.
class ShardedWeights final : public WeightResidency {
 public:
  // Takes every parameter's rows and frees the storages' memory: from then on the model has weights only between Bring
  // and Release. The parameters are all of the model's, in the same order on all ranks; `ranks` outlives this object.
  ShardedWeights(std::span<const Param> params, parallel::Communicator& ranks);

  // Calls CheckWeights, then reads this rank's rows of each parameter, and no others, from the files. The parameters of
  // the table have no memory (WeightShare::row_ranks), and are in no tensor group. `meter` and the errors are those of
  // LoadWeights.
  // Not collective: other ranks may fail. Not for a thread in c10::InferenceMode.
  static absl::StatusOr<std::unique_ptr<ShardedWeights>> Load(const WeightFolder& folder, const ParamTable& table,
                                                              const std::string& component,
                                                              parallel::Communicator& ranks,
                                                              LoadMeter* meter = nullptr);

  void Bring(int part) override;
  void Release(int part) override;

  parallel::Communicator& ranks() const { return ranks_; }
  int64_t own_bytes() const;  // of this rank's rows
  // Returns this rank's rows of a parameter, in the model's dtype. Their contents become the weights when their part is
  // brought next.
  at::Tensor OwnRows(const Param& param) const { return own_rows_.at(param.spec.name); }

 private:
  enum class Rows { kTaken, kUnread };
  ShardedWeights(std::span<const Param> params, parallel::Communicator& ranks, Rows rows);

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
  void Keep(Message& message, Rows rows);
  void Gather(const Part& part, const Message& message);

  parallel::Communicator& ranks_;
  std::map<int64_t, Part> parts_;
  std::map<std::string, at::Tensor> own_rows_;  // views of Message::own
};

// Whether the weights are shared out.
bool AreTaken(std::span<const Param> params);

}  // namespace tessera::models

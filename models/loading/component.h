// Component holds one part of a model (a text encoder, the autoencoder, the transformer) with its weights, which are in
// memory either always or only during use.
#pragma once

#include <c10/core/InferenceMode.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/machine/machine_memory.h"
#include "base/macros/status_macros.h"
#include "control/parameters/placement.h"
#include "models/loading/deferred_weight.h"
#include "models/loading/eight_bits.h"
#include "models/loading/param_table.h"
#include "models/loading/sharded_weights.h"
#include "models/loading/streamed_weights.h"
#include "models/loading/swapped_weights.h"
#include "models/loading/weight_loader.h"
#include "models/loading/weight_memory.h"
#include "models/weights/load_meter.h"
#include "models/weights/model_folder.h"

namespace tessera::models {

// Reads a component's config.json. Fields that no parser reads become warnings.
template <class Config, class Parse>
absl::Status ReadConfig(const ModelFolder& folder, const std::string& component, const Parse& parse, Config& config,
                        std::vector<std::string>& warnings) {
  absl::StatusOr<base::ConfigReader> reader = folder.Config(component);
  if (!reader.ok()) return reader.status();
  absl::StatusOr<Config> parsed = parse(*reader);
  if (!parsed.ok()) return parsed.status();
  config = *std::move(parsed);
  for (const std::string& field : reader->UnknownFields()) {
    warnings.push_back(absl::StrCat(reader->name(), ": the field ", field, " is unknown and was not used"));
  }
  return absl::OkStatus();
}

// Returns InvalidArgument unless model_index.json names one of these classes for the component.
absl::Status CheckClass(const ModelFolder& folder, const std::string& component,
                        absl::Span<const std::string_view> known);

// Used by one thread at a time.
template <class Model>
class Component {
 public:
  using Make = std::function<std::unique_ptr<Model>(ParamTable&)>;
  using SharedWeights = std::shared_ptr<const WeightFolder>;

  // `share` is this rank's part of the weights. `for_training` and `quantize` are those of LoadOptions; they apply to a
  // component that stays in memory.
  Component(ModelFolder folder, std::string name, Make make, at::ScalarType dtype, at::Device device,
            control::ComponentPlacement placement, WeightShare share = {},
            control::WeightStorage storage = control::WeightStorage::kStored,
            control::Products products = control::Products::kPlain, bool for_training = false, bool quantize = false)
      : folder_(std::move(folder)),
        name_(std::move(name)),
        make_(std::move(make)),
        dtype_(dtype),
        device_(placement == control::ComponentPlacement::kCpu ? at::Device(at::kCPU) : device),
        placement_(placement),
        share_(share),
        storage_(storage),
        products_(products),
        for_training_(for_training),
        quantize_(quantize) {
    // A component that is read for each use is in memory only briefly, so it uses the fast device too.
    share_.pinned = !is_transient();
    share_.parked = share_.parked && share_.pinned;
  }

  at::Device device() const { return device_; }
  int64_t weight_bytes() const { return bytes_; }  // of the weights in memory

  // Loads the weights, or only checks that they fit if they are not to stay in memory.
  absl::Status Open() { return is_transient() ? Check() : Load(); }

  // Checks that the files hold everything that the whole component needs. Reads no weights.
  absl::Status Check() const {
    const absl::StatusOr<SharedWeights> weights = OpenWeights();
    if (!weights.ok()) return weights.status();
    ParamTable table(dtype_, at::kMeta);
    make_(table);
    return CheckWeights(**weights, table, name_);
  }

  // Opens the component's files under the names of the parameters.
  absl::StatusOr<SharedWeights> OpenWeights() const {
    if (weights_ != nullptr) return weights_;
    ASSIGN_OR_RETURN(WeightFolder weights, folder_.Weights(name_));
    if (weights.is_foreign()) {
      ParamTable table(dtype_, at::kMeta);
      make_(table);
      RETURN_IF_ERROR(NameWeights(weights, table));
    }
    return std::make_shared<const WeightFolder>(std::move(weights));
  }

  // Reads these files from now on, in place of opening them for each use: a result of OpenWeights for this component.
  void ReadFrom(SharedWeights weights) { weights_ = std::move(weights); }

  // Returns the matrix products of the whole component; those outside `share` are marked.
  std::vector<ProductSpec> Products(WeightShare share) const {
    ParamTable table(dtype_, at::kMeta, share);
    make_(table);
    return table.products();
  }

  // Calls `use` with the component in memory, or of one that is streamed with its residency(). If the component is not
  // kept in memory, returns the errors of reading its files.
  template <class Use>
  auto With(const Use& use) -> absl::StatusOr<decltype(use(std::declval<const Model&>()))> {
    if (model_ == nullptr) {
      if (absl::Status loaded = Load(); !loaded.ok()) return loaded;
    }
    const absl::Cleanup drop = [this] {
      if (!held_) Drop();
    };
    const BroughtPart whole(share_.parked ? residency_.get() : nullptr, WeightResidency::kFrame);
    try {
      return use(static_cast<const Model&>(*model_));
    } catch (const WeightReadError& error) {
      if (!share_.streamed) throw;
      return absl::DataLossError(error.what());
    }
  }

  // While `held` is true, a component that With has loaded stays in memory for the next use.
  void Hold(bool held) {
    held_ = held;
    if (!held) Drop();
  }

  // The parameters of this rank, which the component computes with. Empty unless it was loaded for training.
  const std::vector<Param>& params() const { return params_; }

  // Brings the weights, which are shared out over ranks or wait in the host's memory; null if they are in memory.
  const std::shared_ptr<WeightResidency>& residency() const { return residency_; }

  // The component, which must be kept in memory; Take transfers it to the caller.
  const Model& model() const { return *model_; }
  std::unique_ptr<Model> Take() { return std::move(model_); }

 private:
  bool is_transient() const {
    return placement_ == control::ComponentPlacement::kUnloaded || placement_ == control::ComponentPlacement::kStreamed;
  }

  void Drop() {
    if (!is_transient()) return;
    model_.reset();
    residency_.reset();
    bytes_ = 0;
  }

  ParamTable::FormOf FormsFor(const WeightFolder& weights) const {
    if (quantize_) return InEightBits();
    if (storage_ == control::WeightStorage::kBf16) return {};
    return storage_ == control::WeightStorage::kStored ? StoredForms(weights) : InStorage(storage_);
  }

  // Whether products are read when they are used first. A component that is loaded while a job runs is used at once. If
  // the files do not stay in main memory beside the weights, they would have to be fetched from the disk twice.
  bool Defers() const {
    const std::shared_ptr<LoadMeter>& meter = folder_.meter();
    if (!device_.is_cpu() || for_training_ || meter == nullptr || meter->is_finished()) return false;
    return static_cast<double>(base::ReadMachineMemory().available()) >= 2.0 * static_cast<double>(meter->total());
  }

  absl::Status Load() {
    ASSIGN_OR_RETURN(const SharedWeights weights, OpenWeights());
    const WeightPages pages;
    // Weights that are brought are written to after loading, outside the inference mode in which they may be loaded.
    std::optional<c10::InferenceMode> ordinary;
    if (share_.row_ranks != nullptr || share_.streamed || share_.parked || !share_.waiting.empty()) {
      ordinary.emplace(false);
    }
    ParamTable table(dtype_, device_, share_, FormsFor(*weights));
    if (products_ == control::Products::kFp8) table.QuantizeInputs();
    std::unique_ptr<Model> model = make_(table);
    if (share_.row_ranks != nullptr) {
      ASSIGN_OR_RETURN(std::shared_ptr<ShardedWeights> sharded,
                       ShardedWeights::Load(*weights, table, name_, *share_.row_ranks, folder_.meter().get()));
      bytes_ = sharded->own_bytes();
      residency_ = std::move(sharded);
      model_ = std::move(model);
      return absl::OkStatus();
    }
    if (share_.streamed) {
      RETURN_IF_ERROR(CheckWeights(*weights, table, name_));
      residency_ = std::make_shared<StreamedWeights>(weights, table);
      model_ = std::move(model);
      return absl::OkStatus();
    }
    bytes_ = table.bytes();
    const absl::Status loaded = Defers() ? LoadDeferred(weights, table, name_, folder_.meter().get())
                                         : LoadWeights(*weights, table, name_, folder_.meter().get());
    if (!loaded.ok()) return loaded;
    if (for_training_) {
      table.RequireGradients();
      params_ = table.params();
    } else {
      table.PackForInference();
    }
    if (SwappedWeights::AreIn(table.params())) {
      const BlockOrder order = for_training_   ? BlockOrder::kThereAndBack
                               : share_.parked ? BlockOrder::kUpwards
                                               : BlockOrder::kCyclic;
      residency_ = std::make_shared<SwappedWeights>(
          table.params(), device_,
          SwappedWeightsOptions{.buffers = static_cast<size_t>(share_.block_buffers), .order = order});
    }
    model_ = std::move(model);
    return absl::OkStatus();
  }

  ModelFolder folder_;
  std::string name_;
  Make make_;
  at::ScalarType dtype_;
  at::Device device_;
  control::ComponentPlacement placement_;
  WeightShare share_;
  control::WeightStorage storage_;
  control::Products products_;
  bool for_training_;
  bool quantize_;
  SharedWeights weights_;  // null if the files are opened for each use
  std::unique_ptr<Model> model_;
  std::shared_ptr<WeightResidency> residency_;
  std::vector<Param> params_;
  int64_t bytes_ = 0;
  bool held_ = false;
};

}  // namespace tessera::models

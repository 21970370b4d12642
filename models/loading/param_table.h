// ParamTable lists the parameters of one component (a transformer, an encoder, an autoencoder): their names in the
// checkpoint, their shapes, how they are sharded, and where their values are stored. Layers add to the table during
// construction; loading, saving and gradients walk it, so no parameter can be forgotten.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quantized/quant_type.h"
#include "models/adapters/plan/product_spec.h"
#include "models/loading/offload.h"

namespace tessera::parallel {
class Communicator;
}

namespace tessera::models {

class DeferredWeight;  // models/loading/deferred_weight.h
class WaitingMemory;   // models/loading/waiting_memory.h

// A range of channels.
struct ChannelRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// The part of a table's parameters that one rank of a tensor group holds.
struct TensorShard {
  int rank = 0;
  int size = 1;

  // This rank's range of `count` channels; `count` need not be divisible by `size`. Heads stay whole if their number is
  // divisible.
  int64_t begin(int64_t count) const { return count * rank / size; }
  int64_t end(int64_t count) const { return count * (rank + 1) / size; }
  // This rank's ranges of `count` channels that are `parts` side by side, one range of each part (ProductSpec::parts).
  std::vector<ChannelRange> ranges(int64_t count, const std::vector<int64_t>& parts) const;
  // The number of channels in these ranges.
  int64_t count(int64_t count, const std::vector<int64_t>& parts) const;
};

// The blocks of a transformer that this rank holds: [begin, end).
struct BlockShare {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

// The part of a component that one rank holds, and where it is stored.
struct WeightShare {
  TensorShard tensor;
  BlockShare blocks;
  // Blocks whose weights wait in the host's memory (models/loading/swapped_weights.h); only for a device with its own
  // memory. If `conditioning_waits` is false, the parameters that only Transformer::Modulate reads
  // (PartialGradient::sequence) do not wait with their block.
  std::vector<int64_t> waiting = {};
  bool conditioning_waits = true;
  // The number of device buffers for those blocks.
  int64_t block_buffers = 2;
  // For a device with its own memory: every parameter waits in the host's memory while the component is not in use.
  bool parked = false;
  // Where weights wait; null: in memory of the table's own.
  std::shared_ptr<WaitingMemory> memory = nullptr;
  // For a device with its own memory: the products of this component whose weights wait in the host's memory, and
  // whether that memory is pinned. It is not pinned for a component that is loaded for one use only.
  Offloaded offloaded = Offloaded::kNone;
  bool pinned = true;
  // If not null, the ranks that share every weight out by rows (models/loading/sharded_weights.h): the parameters have
  // memory only while they are brought.
  parallel::Communicator* row_ranks = nullptr;
  // The weights stay in the files (models/loading/streamed_weights.h): as above.
  bool streamed = false;
};

// The part of the gradient that a tensor rank computes for a parameter that is not split over the tensor axis.
enum class OverTensor : uint8_t {
  kWhole,
  kTokens,  // from the tokens that it holds: all of its sequence's, or its part if the tensor ranks share these out
  kHeads,   // from its heads or other split channels
};

// The axes over which the gradient computed by a rank is only one term of a sum.
struct PartialGradient {
  // The sequence axis. False for parameters that a model reads only in Transformer::Read, EmbedStep and Modulate: every
  // rank of a sequence computes those functions in full. The tokens' contributions to the gradients of their results
  // are summed over the ranks at that point, where they are vectors.
  bool sequence = true;
  OverTensor tensor = OverTensor::kTokens;

  bool operator==(const PartialGradient&) const = default;
};

// One parameter as it appears in the checkpoint.
struct ParamSpec {
  std::string name;            // full dotted name
  std::vector<int64_t> shape;  // of the whole parameter, before sharding
  LinearRole role = LinearRole::kReplicated;
  std::vector<std::string> aliases;  // other names that published files use for it
  bool buffer = false;               // stored in the file but never trained
  // For a column product whose output, or a row product whose input, is several parts side by side: the number of
  // channels of each part; each part is split separately. Empty if there is one part.
  std::vector<int64_t> parts;
  PartialGradient partial = {};
  // Of a causal convolution of videos, [out, in, frames, height, width]: only the last slice in time is kept, because
  // of a single frame it alone meets anything but zeros.
  bool last_frame = false;
  // A file may omit it: it is then the identity matrix.
  bool is_identity_if_missing = false;
  bool is_looked_up = false;  // row by row: no product's weight
};

// The form in which a weight stays in memory.
struct QuantForm {
  kernels::QuantType type = kernels::QuantType::kInt8;
  // QuantType::kNibble: the number of values that share a scale, and the values of the sixteen codes.
  int64_t scale_block = 0;
  std::vector<float> table = {};

  int64_t scales_per_row(int64_t columns) const {
    if (kernels::HasOwnScales(type)) return 0;
    return scale_block == 0 ? 1 : columns / scale_block;
  }
  // Whether a range of columns that begins or ends at this one can be taken from the packed bytes.
  bool can_cut_at(int64_t column) const {
    return column % kernels::BlockOf(type).values == 0 && (scale_block == 0 || column % scale_block == 0);
  }

  bool operator==(const QuantForm&) const = default;
};

// Consecutive rows of a product's weight, or a table's, that are stored alike: plain as [rows, in], or in the layout of
// kernels::PackWeight (products alone), or quantized as bytes [rows, …] with fp32 scales [rows, …] if the form has
// them.
struct WeightRows {
  at::Tensor values, scales;
  std::optional<QuantForm> form;
  at::Tensor table;              // of the form, on the device of the values
  int64_t in = 0;                // columns
  bool quantizes_input = false;  // the product is kernels::Fp8Product
  // Reads the values when they are used first; null if they are in `values`.
  std::shared_ptr<DeferredWeight> deferred = nullptr;

  // Returns the values. Throws WeightReadError if they are deferred and cannot be read.
  const at::Tensor& Values() const;
};

// The stored weight of one matrix product.
struct ProductWeight {
  at::Tensor values;             // [out, in] in the layout of kernels::PackWeight, or as stored in the host's memory if
                                 // they wait there; undefined if some rows are quantized, or if they are deferred
  std::vector<WeightRows> rows;  // in the order of the output features, if some of them are quantized; else empty
  std::shared_ptr<DeferredWeight> deferred = nullptr;  // as in WeightRows

  // As in WeightRows.
  const at::Tensor& Values() const;
};

struct Param {
  static constexpr int64_t kNoBlock = -1;

  ParamSpec spec;
  at::Tensor storage;          // the leaf tensor that the layer computes with
  int64_t offset = 0;          // first row of this parameter in `storage` if several parameters are packed into it
  std::vector<int64_t> shape;  // of this rank's part
  int64_t block = kNoBlock;    // of the transformer that computes with it
  std::optional<QuantForm> form = {};  // if `storage` holds quantized weights, as bytes [rows, …]
  at::Tensor scales = {};              // fp32, for all rows of `storage`; undefined if the form has none
  // The host memory in which the weights of the parameter's block wait, readable by the device: the contents of
  // `storage` and `scales` while the block is brought. Undefined if `storage` and `scales` always hold the weights.
  at::Tensor waiting = {}, waiting_scales = {};

  // Returns the parameter's rows of `storage`, or of a tensor with the same rows such as its gradient or `scales`.
  at::Tensor View(const at::Tensor& tensor) const {
    return shape.empty() ? tensor : tensor.narrow(0, offset, shape[0]);
  }
  at::Tensor Value() const { return View(storage); }
  // The destinations of the values and their scales on loading.
  at::Tensor LoadedValue() const { return View(waiting.defined() ? waiting : storage); }
  at::Tensor LoadedScales() const { return View(waiting.defined() ? waiting_scales : scales); }
};

// Owns handles to the tensors it allocates; layers share them. Not thread-safe while parameters are added.
class ParamTable {
 public:
  // Returns the form in which the weight of a product, or a table that is looked up, stays in memory; nothing if it is
  // plain.
  using FormOf = std::function<std::optional<QuantForm>(const ParamSpec&)>;

  // Without `form_of` all weights are plain.
  ParamTable(at::ScalarType dtype, at::Device device, WeightShare share = {}, FormOf form_of = {})
      : options_(at::TensorOptions(dtype).device(device)),
        shard_(share.tensor),
        blocks_(share.blocks),
        waiting_(std::move(share.waiting)),
        conditioning_waits_(share.conditioning_waits),
        parked_(share.parked && HasOwnMemory(device)),
        memory_(std::move(share.memory)),
        offloaded_(share.offloaded),
        pinned_(share.pinned),
        is_brought_(share.row_ranks != nullptr || share.streamed),
        form_of_(std::move(form_of)) {}

  // Sets the forms of products that are added from now on.
  void KeepAs(FormOf form_of) { form_of_ = std::move(form_of); }

  // Products of blocks that are added from now on, and whose weight stays in e4m3, quantize their input too
  // (kernels::Fp8Product). Products that only Transformer::Modulate computes do not: their input is one vector an
  // image.
  void QuantizeInputs() { quantizes_inputs_ = true; }

  // Allocates the storage of one parameter without touching it.
  at::Tensor Add(ParamSpec spec);

  // Allocates one storage for several parameters, stored consecutively along dimension 0. Their shapes agree in all
  // other dimensions.
  at::Tensor AddPacked(std::vector<ParamSpec> specs);

  // Like AddPacked, for the weights of one matrix product. PackForInference may reorder them in memory.
  std::shared_ptr<ProductWeight> AddProduct(std::vector<ParamSpec> specs);

  // Like Add, for a table that is looked up row by row: it stays in the form in which its file has it.
  WeightRows AddLookedUp(ParamSpec spec);

  // Like Add, for the weight of a convolution, [out, in, height, width], or of a causal convolution of videos, of which
  // the last frame is kept. PackForInference may reorder it in memory.
  std::shared_ptr<at::Tensor> AddConvolution(ParamSpec spec);

  // Called after loading. Reorders the weights of products and convolutions for the device's kernels, one after
  // another, so that at most one of them exists twice at a time. Weights that changed are no longer listed in the
  // table.
  void PackForInference();

  // Fills the storage of parameters; throws WeightReadError if it cannot.
  using ReadParams = std::function<void(std::span<const Param> params)>;

  // Takes the weights of products that are in the host's memory from the list, and drops their storage. `read`, and
  // PackWeight for plain ones, make it when a product is used first. Returns the parameters that were taken, without a
  // storage.
  std::vector<Param> DeferProducts(const ReadParams& read);

  // Parameters added between EnterBlock and LeaveBlock belong to that block. If the block is another rank's, its
  // tensors are on the meta device, are not listed, and are skipped in the file. If its weights wait in the host's
  // memory, its tensors have no memory on the device.
  void EnterBlock(int64_t index);
  void LeaveBlock();

  // Called in place of PackForInference: marks every parameter except buffers and quantized weights as requiring a
  // gradient.
  void RequireGradients();

  // Declares that a tensor of this name in a file is expected and not used.
  void IgnoreInFile(std::string name) { ignored_.push_back(std::move(name)); }
  // The same for all tensors whose names begin with `scope`, as those of a part that is not built do.
  void IgnoreScopeInFile(std::string scope) { ignored_scopes_.push_back(std::move(scope)); }

  const std::vector<Param>& params() const { return params_; }
  // All products of the component, including those of other ranks' blocks, in the order in which they were added.
  const std::vector<ProductSpec>& products() const { return product_specs_; }
  const TensorShard& shard() const { return shard_; }
  const std::vector<std::string>& ignored() const { return ignored_; }
  const std::vector<std::string>& ignored_scopes() const { return ignored_scopes_; }
  at::ScalarType dtype() const { return c10::typeMetaToScalarType(options_.dtype()); }
  at::Device device() const { return options_.device(); }
  int64_t bytes() const;

 private:
  static bool HasOwnMemory(at::Device device) { return !device.is_cpu() && !device.is_meta(); }
  // Returns the shape of this rank's part.
  std::vector<int64_t> LocalShape(const ParamSpec& spec) const;
  at::TensorOptions Options() const { return elsewhere_ ? options_.device(at::kMeta) : options_; }
  // A tensor and, if its block waits, the host memory that it is copied from.
  struct Allocation {
    at::Tensor tensor, waiting;
  };
  // Where a parameter's values are: on the device, in the host's memory until its block is brought, or there always.
  enum class Home : uint8_t { kDevice, kWaits, kHost };
  Home HomeOf(const ParamSpec& spec, bool offloaded = false) const;
  Allocation Allocate(at::IntArrayRef shape, at::ScalarType dtype, Home home);
  // Whether the weights of this product wait in the host's memory.
  bool Waits(const std::vector<ParamSpec>& specs) const;
  // Reorders a convolution's weight that waits in the host's memory.
  static void ReorderWaiting(Param& param);
  // Moves the parameters with this storage from the list to `taken`. Returns what makes the values from them.
  std::shared_ptr<DeferredWeight> Defer(at::Tensor& values, const ReadParams& read, std::vector<Param>& taken);
  // Removes the parameters with this storage from the list.
  void Unlist(const at::Tensor& storage);
  void List(Param param);
  // Allocates the storage of parameters of the same form.
  WeightRows Pack(std::vector<ParamSpec> specs, const std::optional<QuantForm>& form, bool offloaded = false);

  at::TensorOptions options_;
  TensorShard shard_;
  BlockShare blocks_;
  std::vector<int64_t> waiting_;
  bool conditioning_waits_, parked_;
  std::shared_ptr<WaitingMemory> memory_;
  Offloaded offloaded_;
  bool pinned_;
  bool is_brought_;  // parameters have no memory
  int64_t block_ = Param::kNoBlock;
  FormOf form_of_;
  bool quantizes_inputs_ = false;
  bool elsewhere_ = false, waits_ = false;  // of the current block
  std::vector<Param> params_;
  std::vector<std::shared_ptr<ProductWeight>> products_;
  std::vector<std::shared_ptr<at::Tensor>> convolutions_;
  std::vector<ProductSpec> product_specs_;
  std::vector<std::string> ignored_, ignored_scopes_;
};

// A table with a prefix for the names added through it: scope / "attn1" / "to_q".
class ParamScope {
 public:
  explicit ParamScope(ParamTable& table, std::string prefix = "", PartialGradient partial = {})
      : table_(&table), prefix_(std::move(prefix)), partial_(partial) {}

  ParamScope operator/(std::string_view name) const { return ParamScope(*table_, Name(name), partial_); }
  ParamScope operator/(int64_t index) const { return *this / std::to_string(index); }

  std::string Name(std::string_view leaf) const {
    return prefix_.empty() ? std::string(leaf) : prefix_ + "." + std::string(leaf);
  }
  std::shared_ptr<at::Tensor> AddConvolution(std::string_view leaf, std::vector<int64_t> shape) const {
    return table_->AddConvolution({.name = Name(leaf), .shape = std::move(shape), .partial = partial_});
  }
  const std::string& prefix() const { return prefix_; }
  ParamTable& table() const { return *table_; }

  // Scopes of the same prefix: OfConditioning for parameters whose gradient is not of the tokens (PartialGradient),
  // OfHeads for those whose gradient comes from the heads.
  ParamScope OfConditioning() const { return ParamScope(*table_, prefix_, kOfConditioning); }
  ParamScope OfHeads() const { return ParamScope(*table_, prefix_, {.tensor = OverTensor::kHeads}); }
  PartialGradient partial() const { return partial_; }

  at::Tensor Add(std::string_view leaf, std::vector<int64_t> shape) const {
    return table_->Add({.name = Name(leaf), .shape = std::move(shape), .partial = partial_});
  }

 private:
  static constexpr PartialGradient kOfConditioning = {.sequence = false, .tensor = OverTensor::kWhole};

  ParamTable* table_;
  std::string prefix_;
  PartialGradient partial_;
};

}  // namespace tessera::models

// The parameters of one component (a transformer, an encoder, an autoencoder): their names in the checkpoint, their
// shapes, how they are sharded, and where their values live. Layers add to the table while they are built; loading,
// saving and gradients walk it, so nothing can be forgotten.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/adapters/plan/product_spec.h"
#include "models/loading/offload.h"

namespace tessera::models {

// The part of a tensor group's ranks that holds the parameters of one table.
struct TensorShard {
  int rank = 0;
  int size = 1;

  // This rank's share of `count` channels, which need not divide. Heads stay whole where their number divides.
  int64_t begin(int64_t count) const { return count * rank / size; }
  int64_t end(int64_t count) const { return count * (rank + 1) / size; }
};

// Which of a transformer's blocks are this rank's: [begin, end).
struct BlockShare {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

// What one rank holds of a component, and where.
struct WeightShare {
  TensorShard tensor;
  BlockShare blocks;
  // Blocks whose weights wait in the host's memory (models/loading/swapped_weights.h), where the device has its own.
  std::vector<int64_t> waiting = {};
  // Where the device has memory of its own: products of this component whose weights wait in the host's, and whether
  // for longer than a moment, so that the device reads them by itself.
  Offloaded offloaded = Offloaded::kNone;
  bool pinned = true;
};

// What a tensor rank computes of the gradient of a parameter that is not split over the tensor axis.
enum class OverTensor : uint8_t {
  kWhole,
  kTokens,  // what comes from the tokens that it holds: all of its sequence's, or its part where they share these out
  kHeads,   // what comes from its heads, or other channels that are split
};

// Over which axes the gradient that a rank computes of its part is only that rank's share of a sum.
struct PartialGradient {
  // The tokens. False for what a model reads in Transformer::Read, EmbedStep and Modulate alone: every rank of a
  // sequence computes these whole, and what the tokens' gradients add to their results is summed there, where it is a
  // vector.
  bool sequence = true;
  OverTensor tensor = OverTensor::kTokens;

  bool operator==(const PartialGradient&) const = default;
};

// One parameter as the checkpoint knows it.
struct ParamSpec {
  std::string name;            // full dotted name
  std::vector<int64_t> shape;  // of the whole parameter, before sharding
  LinearRole role = LinearRole::kReplicated;
  std::vector<std::string> aliases;  // other names under which published files carry it
  bool buffer = false;               // of the file, but never trained
  // A row product whose input is several parts side by side: their numbers of channels, each split for itself. Empty:
  // one part.
  std::vector<int64_t> in_parts;
  PartialGradient partial = {};
};

// The weight of one matrix product, as it is held.
struct ProductWeight {
  at::Tensor values;  // [out, in], as kernels::PackWeight has it, or int8; or as they wait in the host's memory
  at::Tensor
      scales;  // [out, 1], of values in eight bits (models/loading/eight_bits.h); undefined: these are the weight
};

struct Param {
  static constexpr int64_t kNoBlock = -1;

  ParamSpec spec;
  at::Tensor storage;          // the leaf tensor that the layer computes with
  int64_t offset = 0;          // first row of this parameter in `storage`, where several are packed into one
  std::vector<int64_t> shape;  // of this rank's part
  int64_t block = kNoBlock;    // of the transformer, which computes with it
  at::Tensor scales = {};      // of all rows of `storage`, where that holds eight bits a weight; else undefined
  // Where the weights of its block wait: what `storage` and `scales` hold while the block is brought, in memory of the
  // host that the device reads by itself. Undefined: these hold it always.
  at::Tensor waiting = {}, waiting_scales = {};

  // The parameter's own rows of `storage` (or of a tensor of the same shape, such as its gradient).
  at::Tensor View(const at::Tensor& tensor) const {
    return shape.empty() ? tensor : tensor.narrow(0, offset, shape[0]);
  }
  at::Tensor Value() const { return View(storage); }
  // Where its values, and their scales, are loaded.
  at::Tensor LoadedValue() const { return View(waiting.defined() ? waiting : storage); }
  at::Tensor LoadedScales() const { return View(waiting.defined() ? waiting_scales : scales); }
};

// Owns handles to the tensors it allocates; layers share them. Not thread-safe while it is being filled.
class ParamTable {
 public:
  // `quantize`: the weights of products are held in eight bits.
  ParamTable(at::ScalarType dtype, at::Device device, WeightShare share = {}, bool quantize = false)
      : options_(at::TensorOptions(dtype).device(device)),
        shard_(share.tensor),
        blocks_(share.blocks),
        waiting_(std::move(share.waiting)),
        offloaded_(share.offloaded),
        pinned_(share.pinned),
        quantize_(quantize) {}

  // Allocates (without touching) the storage of one parameter.
  at::Tensor Add(ParamSpec spec);

  // Allocates one storage for several parameters that lie one after another along dimension 0. Their shapes agree in
  // all other dimensions.
  at::Tensor AddPacked(std::vector<ParamSpec> specs);

  // As AddPacked, for the weights of one matrix product, whose order in memory PackForInference may change.
  std::shared_ptr<ProductWeight> AddProduct(std::vector<ParamSpec> specs);

  // As Add, for the weight of a convolution [out, in, height, width], whose order in memory PackForInference may
  // change.
  std::shared_ptr<at::Tensor> AddConvolution(ParamSpec spec);

  // Once everything is loaded: puts the weights of products and convolutions into the order in which the device
  // multiplies, one after another, so that no more than one of them is there twice. The table no longer lists those
  // that changed.
  void PackForInference();

  // What is added from here to LeaveBlock() belongs to that block. If it is another rank's, its tensors are on the meta
  // device, are not listed, and are passed over in the file. If it waits in the host's memory, they have none on the
  // device.
  void EnterBlock(int64_t index);
  void LeaveBlock();

  // In place of PackForInference: every parameter but the buffers and what is held in eight bits asks for a gradient.
  void RequireGradients();

  // Tensors of this name in a file belong to nothing here, and that is right.
  void IgnoreInFile(std::string name) { ignored_.push_back(std::move(name)); }

  const std::vector<Param>& params() const { return params_; }
  // Every product of the component, those of other ranks' blocks among them, in the order in which they were added.
  const std::vector<ProductSpec>& products() const { return product_specs_; }
  const TensorShard& shard() const { return shard_; }
  const std::vector<std::string>& ignored() const { return ignored_; }
  at::ScalarType dtype() const { return c10::typeMetaToScalarType(options_.dtype()); }
  at::Device device() const { return options_.device(); }
  int64_t bytes() const;

 private:
  // The shape of this rank's part.
  std::vector<int64_t> LocalShape(const ParamSpec& spec) const;
  at::TensorOptions Options() const { return elsewhere_ ? options_.device(at::kMeta) : options_; }
  // A tensor, and where its block waits what of the host's memory it is brought from.
  struct Allocation {
    at::Tensor tensor, waiting;
  };
  // `offloaded`: the tensor itself is in the host's memory.
  Allocation Allocate(at::IntArrayRef shape, at::ScalarType dtype, bool offloaded = false) const;
  // Whether the weights of this product wait in the host's memory.
  bool Waits(const std::vector<ParamSpec>& specs) const;
  // Takes what has this storage from the list.
  void Unlist(const at::Tensor& storage);
  void List(Param param);
  ProductWeight Pack(std::vector<ParamSpec> specs, bool quantize, bool offloaded = false);

  at::TensorOptions options_;
  TensorShard shard_;
  BlockShare blocks_;
  std::vector<int64_t> waiting_;
  Offloaded offloaded_;
  bool pinned_;
  int64_t block_ = Param::kNoBlock;
  bool quantize_;
  bool elsewhere_ = false, waits_ = false;  // the block that was entered
  std::vector<Param> params_;
  std::vector<std::shared_ptr<ProductWeight>> products_;
  std::vector<std::shared_ptr<at::Tensor>> convolutions_;
  std::vector<ProductSpec> product_specs_;
  std::vector<std::string> ignored_;
};

// A table and the prefix of the names added through it: scope / "attn1" / "to_q".
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

  // The same place for parameters that PartialGradient calls not of the tokens, and for those that heads read.
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

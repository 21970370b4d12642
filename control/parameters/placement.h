// Defines where the components of a model are kept, and in which dtypes it is served. LibTorch-free.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "base/fields/enum_names.h"
#include "base/fields/fields.h"
#include "base/text/byte_text.h"
#include "control/host/driver_memory.h"
#include "control/parameters/dtype.h"
#include "control/parameters/weight_storage.h"

namespace tessera::control {

// Where a component other than the transformer is kept.
enum class ComponentPlacement {
  kRank0,     // on the first rank's device
  kCpu,       // in the first rank's host memory
  kUnloaded,  // read from its files for each use and dropped after it
  kSharded,   // shared out over the devices of all ranks, which use it together
  kStreamed,  // read from its files a layer at a time for each use
};
constexpr auto NamesOf(ComponentPlacement) { return std::array{"rank0", "cpu", "unload", "sharded", "stream"}; }

// The placements that an autoencoder can have.
enum class AutoencoderPlacement { kRank0, kCpu, kUnloaded };
constexpr auto NamesOf(AutoencoderPlacement) { return std::array{"rank0", "cpu", "unload"}; }
constexpr ComponentPlacement PlacementOf(AutoencoderPlacement placement) {
  return static_cast<ComponentPlacement>(placement);
}

// Which weights are kept in host memory, on devices with memory separate from it.
enum class Offload {
  kAuto,    // as few as necessary (control/model/memory_fit.h)
  kNever,   // none
  kAlways,  // all that are used once per image
};
constexpr auto NamesOf(Offload) { return std::array{"auto", "never", "always"}; }

// How the blocks of the transformer multiply.
enum class Products {
  kPlain,  // in the dtype of the model
  kFp8,    // inputs are quantized to e4m3 as well, with a scale for each row; only weights in e4m3
};
constexpr auto NamesOf(Products) { return std::array{"plain", "fp8"}; }

// Names products that are not plain: "fp8". Empty for plain ones.
inline std::string ProductsText(Products products) {
  return products == Products::kPlain ? "" : base::EnumName(products);
}

// Names the storage of a model whose files hold weights quantized to `stored`, which is empty if they are plain: "fp8",
// or `stored` itself. Empty for plain weights.
inline std::string StorageText(WeightStorage storage, const std::string& stored) {
  if (storage == WeightStorage::kStored) return stored;
  return IsQuantizing(storage) ? base::EnumName(storage) : "";
}

// How a model is kept and computed on its devices. A field is an option of the command line, with its help, a key of a
// group in the server's configuration, and a part of every request to load a model.
struct Placement {
  int32_t threads = 0;  // on the CPU, of all ranks together; 0: all of the machine's processors
  ComponentPlacement text_encoders = ComponentPlacement::kRank0;
  AutoencoderPlacement autoencoder = AutoencoderPlacement::kRank0;
  bool stream_blocks = false;  // the transformer's blocks are read from its files for each use
  Offload offload = Offload::kAuto;
  WeightStorage weights = WeightStorage::kStored;
  Products products = Products::kPlain;
  // The most of a device's memory that a rank may take, such as "12GiB" (base::ParseByteText); empty: what is free.
  std::string memory_limit = {};

  bool operator==(const Placement&) const = default;
};

inline constexpr int32_t kMaxThreads = 1024;

constexpr auto FieldsOf(const Placement*) {
  using base::Field;
  using P = Placement;
  return std::tuple(
      Field("threads", &P::threads, base::Integer{0, kMaxThreads}, "CPU threads of all ranks together; 0: all"),
      Field("text_encoders", &P::text_encoders,
            "Where the text encoders are: on the first rank's device, in main memory, read for each use, shared out "
            "over all ranks, or read a layer at a time for each prompt"),
      Field("autoencoder", &P::autoencoder, "Where the autoencoder is, with the first three of these values"),
      Field("stream_blocks", &P::stream_blocks,
            "Read each block of the transformer from its files for every use: for models that do not fit"),
      Field("offload", &P::offload,
            "Whether weights wait in main memory, for GPUs with less memory than the model takes: as few as necessary, "
            "none, or all that are used once an image"),
      Field("weights", &P::weights,
            "How weights are kept in memory: as their files have them, unpacked to bf16, or quantized while they are "
            "loaded. Quantized weights are widened for each use, so that they cost memory alone: the image is that of "
            "the same weights unpacked"),
      Field(
          "products", &P::products,
          "How the transformer's blocks multiply: in the dtype of the model, or in fp8, which quantizes inputs as well "
          "(e4m3, a scale for each row) and needs weights in fp8. Not lossless: the image is close to that of plain "
          "products"),
      Field("memory_limit", &P::memory_limit, base::Text{.most_bytes = 32},
            "Most memory of a GPU that a rank may take, such as 12GiB, of which 0.5 GiB are for the driver and its "
            "libraries; without it, what is free"));
}

// A limit leaves something beyond what is for the driver.
inline absl::Status CheckRules(const Placement& placement) {
  return placement.memory_limit.empty() ? absl::OkStatus()
                                        : base::CheckByteText("memory_limit", placement.memory_limit, kDriverBytes);
}

}  // namespace tessera::control

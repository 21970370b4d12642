// LoadParameters holds which model a worker loads, in which dtype, on which device and with which placement. Plain
// values, free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "base/fields/fields.h"
#include "control/parameters/component_files.h"
#include "control/parameters/placement.h"

namespace tessera::control {

struct LoadParameters {
  std::string model;     // folder, or the file of a transformer
  ComponentFiles files;  // its components that are elsewhere
  Dtype dtype = Dtype::kFp32;
  std::string device = "cpu";  // as for ParseDevice (control/host/device.h)
  Placement placement;
  uint64_t prompt_cache_bytes = uint64_t{256} << 20;  // 0: prompts are encoded every time
  std::string record;     // folder for records of the blocks' outputs (control/model/step_record.h); empty: no record
  bool training = false;  // the transformer's weights will be trained
  bool quantize = false;  // the transformer's matrices are frozen and stored in 8 bits; requires `training`
  // Number of the transformer's frozen blocks that are kept in host memory and copied to the device for each use
  // (control/training/model_training.h); requires `training`.
  int32_t blocks_to_swap = 0;
};

constexpr auto FieldsOf(const LoadParameters*) {
  using base::Field, base::Integer;
  using L = LoadParameters;
  return std::tuple(Field("model", &L::model, base::kPath), base::Inline(&L::files), Field("dtype", &L::dtype),
                    Field("device", &L::device), base::Inline(&L::placement),
                    Field("prompt_cache_bytes", &L::prompt_cache_bytes, Integer{0, uint64_t{1} << 40}),
                    Field("record", &L::record, base::kPath), Field("training", &L::training),
                    Field("quantize", &L::quantize), Field("blocks_to_swap", &L::blocks_to_swap, Integer{0, 1 << 16}));
}

}  // namespace tessera::control

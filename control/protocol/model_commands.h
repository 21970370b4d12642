// Defines the commands that describe and load a model and identify a device. Plain values, free of LibTorch and
// protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "base/fields/fields.h"
#include "control/model/model_description.h"
#include "control/parameters/component_files.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/protocol/command_number.h"

namespace tessera::control {

// Reads the model's configuration and the headers of its weight files; needs no earlier LoadModel.
struct DescribeModel {
  std::string model;  // folder, or the file of a transformer
  ComponentFiles files;

  using Reply = ModelDescription;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const DescribeModel*) {
  return std::tuple(base::Field("model", &DescribeModel::model, base::kPath), base::Inline(&DescribeModel::files));
}

struct IdentifyDevice {
  std::string device;  // as in LoadParameters

  using Reply = DeviceIdentity;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const IdentifyDevice*) { return std::tuple(base::Field("device", &IdentifyDevice::device)); }

// Loads a model. A worker holds at most one: an earlier one is dropped first, with its jobs.
struct LoadModel {
  LoadParameters parameters;

  using Reply = Loaded;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const LoadModel*) { return std::tuple(base::Inline(&LoadModel::parameters)); }

// Waits until the worker has read all files of the loaded model for their digest.
struct DigestModel {
  using Reply = ModelDigest;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const DigestModel*) { return std::tuple(); }

using ModelCommands = std::tuple<DescribeModel, IdentifyDevice, LoadModel, DigestModel>;
template <CommandOf<ModelCommands> Command>
inline constexpr uint32_t kCommandNumber<Command> = kCommandIndex<Command, ModelCommands>;

}  // namespace tessera::control

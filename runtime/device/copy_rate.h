// Measures the rates from which the time of a step is predicted whose weights come from main memory.
#pragma once

#include <ATen/ATen.h>

namespace tessera::runtime {

// Rates of a device with memory of its own; 0 where its clock shows none.
struct DeviceRates {
  double copied_bytes_second = 0;    // from pinned memory, or from pageable memory where none can be pinned
  double pageable_bytes_second = 0;  // from pageable memory
  double product_flops = 0;          // operations per second of a large product
};

// Takes some 100 MiB of the device for some milliseconds. Throws what operators throw.
DeviceRates MeasureDeviceRates(at::Device device, at::ScalarType dtype);

}  // namespace tessera::runtime

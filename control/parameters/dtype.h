// Defines the dtypes in which a model is served. LibTorch-free.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::control {

// The dtype of weights as they are served.
enum class Dtype { kFp64, kFp32, kBf16 };
constexpr auto NamesOf(Dtype) { return std::array{"fp64", "fp32", "bf16"}; }

// Bytes of one element.
constexpr int64_t ElementBytes(Dtype dtype) { return dtype == Dtype::kFp64 ? 8 : dtype == Dtype::kFp32 ? 4 : 2; }

}  // namespace tessera::control

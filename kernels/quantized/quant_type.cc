#include "kernels/quantized/quant_type.h"

namespace tessera::kernels {

std::string_view QuantTypeName(QuantType type) {
  switch (type) {
    case QuantType::kInt8:
      return "int8";
    case QuantType::kF8E4M3:
      return "fp8_e4m3";
    case QuantType::kF8E5M2:
      return "fp8_e5m2";
    case QuantType::kNibble:
      return "nibble";
    case QuantType::kQ4_0:
      return "Q4_0";
    case QuantType::kQ4_1:
      return "Q4_1";
    case QuantType::kQ5_0:
      return "Q5_0";
    case QuantType::kQ5_1:
      return "Q5_1";
    case QuantType::kQ8_0:
      return "Q8_0";
    case QuantType::kQ2_K:
      return "Q2_K";
    case QuantType::kQ3_K:
      return "Q3_K";
    case QuantType::kQ4_K:
      return "Q4_K";
    case QuantType::kQ5_K:
      return "Q5_K";
    case QuantType::kQ6_K:
      return "Q6_K";
    case QuantType::kIQ4_NL:
      return "IQ4_NL";
    case QuantType::kIQ4_XS:
      return "IQ4_XS";
  }
  return "";
}

std::optional<QuantType> QuantTypeOf(std::string_view name) {
  for (const QuantType type : kQuantTypes) {
    if (QuantTypeName(type) == name) return type;
  }
  return std::nullopt;
}

}  // namespace tessera::kernels

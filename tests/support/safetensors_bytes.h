// Makes safetensors files by hand.
#pragma once

#include <string>

namespace tessera {

// Returns a safetensors file with that header and that data.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header + data;
}

// Returns a safetensors file with one F32 tensor [1] of four zero bytes.
inline std::string OneTensor(const std::string& name) {
  return SafetensorsBytes("{\"" + name + R"(": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
                          std::string(4, '\0'));
}

}  // namespace tessera

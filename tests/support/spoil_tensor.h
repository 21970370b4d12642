// SpoilTensor puts numbers into a file of weights that make a model's activations infinite, although every weight is
// finite.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "tests/support/safetensors_bytes.h"

namespace tessera {

// The largest numbers of BF16.
inline constexpr uint16_t kLargestBf16 = 0x7F7F, kLowestBf16 = 0xFF7F;

// Sets each value of a tensor to `bits` of BF16, in a safetensors file of F16 weights.
inline void SpoilTensor(const std::string& path, const std::string& tensor, uint16_t bits) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = text.str();
  uint64_t length = 0;
  ASSERT_GT(bytes.size(), sizeof(length));
  std::memcpy(&length, bytes.data(), sizeof(length));
  const std::string header = bytes.substr(sizeof(length), length);
  std::string data = bytes.substr(sizeof(length) + length);
  std::smatch found;
  const std::regex entry("(\"" + tensor +
                         R"re(":\{"dtype":")F16(","shape":\[[0-9,]+\],"data_offsets":\[(\d+),(\d+)\]))re");
  ASSERT_TRUE(std::regex_search(header, found, entry)) << tensor;
  for (size_t at = std::stoul(found[3]); at < std::stoul(found[4]); at += sizeof(bits)) {
    std::memcpy(data.data() + at, &bits, sizeof(bits));
  }
  std::string spoiled = found.prefix().str() + found[1].str() + "BF16" + found[2].str() + found.suffix().str();
  spoiled.resize((spoiled.size() + 7) / 8 * 8, ' ');
  std::ofstream(path, std::ios::binary) << SafetensorsBytes(spoiled, data);
}

}  // namespace tessera

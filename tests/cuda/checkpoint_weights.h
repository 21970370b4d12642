// Reads the matrices of a transformer's blocks from the headers of its weight files.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace tessera {

// Returns the rows of all matrices that a block multiplies in every step, summed by their length. Excludes the matrices
// of its modulation, which depends only on the time, and those that compute keys and values of the text.
inline std::map<int64_t, int64_t> BlockRowsByLength(const std::string& model, bool attends_to_text) {
  std::map<int64_t, int64_t> rows;
  for (const auto& entry : std::filesystem::directory_iterator(model + "/transformer")) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    uint64_t size = 0;
    file.read(reinterpret_cast<char*>(&size), sizeof(size));
    std::string header(size, '\0');
    file.read(header.data(), static_cast<std::streamsize>(size));
    const boost::json::value tensors = boost::json::parse(header);
    for (const auto& [key, value] : tensors.as_object()) {
      const std::string name(key);
      if (name.find("blocks.") == std::string::npos || !name.ends_with(".weight")) continue;
      if (name.find(".norm") != std::string::npos) continue;
      if (attends_to_text && (name.ends_with("attn2.to_k.weight") || name.ends_with("attn2.to_v.weight"))) continue;
      const boost::json::array& shape = value.at("shape").as_array();
      if (shape.size() == 2) rows[shape[1].as_int64()] += shape[0].as_int64();
    }
  }
  EXPECT_FALSE(rows.empty()) << model;
  return rows;
}

}  // namespace tessera

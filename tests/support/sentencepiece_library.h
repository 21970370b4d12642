// Wraps the sentencepiece library as an independent source for tests. Never link it with protobuf (see
// sentencepiece_model.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// Encodes every text with the model file. Empty if the library cannot read the model.
std::vector<std::vector<int64_t>> EncodeWithLibrary(const std::string& model_path,
                                                    const std::vector<std::string>& texts);

}  // namespace tessera

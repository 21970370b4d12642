// The image servers whose clients' fields POST /v1/images/generations may read in addition to its own
// (server/http/client_fields.h). A configuration lists them by these names.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::server {

enum class ForeignClient : uint8_t { kSglang, kVllmOmni, kSdCpp };
constexpr auto NamesOf(ForeignClient) { return std::array{"sglang", "vllm-omni", "sd-cpp"}; }

}  // namespace tessera::server

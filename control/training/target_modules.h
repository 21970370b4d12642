// Says which modules of a model network.target_modules selects. Pure; free of LibTorch.
//
// A target is "all-linear", which selects every matrix product; or the end of a dotted name ("to_q" selects
// "transformer_blocks.0.attn.to_q", and "q" does not); or a pattern, in which "*" stands for any characters, points
// included, and "?" for one. A pattern matches a whole name or the end of one that follows a point:
// "transformer_blocks.*.attn.*" selects all products of these blocks' attention.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera::control {

inline constexpr char kAllLinear[] = "all-linear";

bool IsTarget(std::string_view module, std::string_view target);
bool IsTargetOfAny(std::string_view module, std::span<const std::string> targets);

// INVALID_ARGUMENT for the first target that selects none of the modules, with the name or pattern that is nearest to
// it. In that, block numbers are "*".
absl::Status CheckTargets(std::span<const std::string> targets, std::span<const std::string> modules);

}  // namespace tessera::control

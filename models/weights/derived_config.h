// Derives the config.json of a component from the shapes of its tensors, for files that come without one. Numbers that
// no shape shows (the base of rotary positions, the scale of latents) are those of the published models; a head has the
// published width where the file has no norm of heads. LibTorch-free; pure; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/keymaps/key_map.h"
#include "models/weights/file_kind.h"

namespace tessera::models {

// Return a value of a configuration; 0 and false if it is absent or of another type.
int64_t ConfigInt(const base::Json& config, std::string_view key);
bool ConfigBool(const base::Json& config, std::string_view key);

// Returns the numbers of a configuration that KeyMapOf needs for a component of that class, counted in the names of the
// file: num_layers, block_out_channels, dim_mult, num_res_blocks. Other numbers of it mean nothing.
base::Json NamingConfig(std::string_view class_name, const TensorShapes& file);

// Returns the text of a component's configuration. `file` has the names of `form`; `pipeline` is the class of the
// pipeline that it belongs to, which determines how the latents of an autoencoder are scaled, and `component` its name
// there. InvalidArgument, naming the first tensor without which nothing can be derived, or for a class that is not
// known.
absl::StatusOr<std::string> DeriveConfig(const std::string& class_name, const TensorShapes& file, NameForm form,
                                         std::string_view pipeline, std::string_view component);

}  // namespace tessera::models

// ImageRequest has the values of a request as the caller gave them; server/api/request_fields.h describes its fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera::server {

// A low-rank adapter to use for an image.
struct AdapterRequest {
  std::string name;  // the server's name for it; on the command line without a server, its file path
  double scale = 1;  // within kAdapterScales

  bool operator==(const AdapterRequest&) const = default;
};

// A picture, given in one of three ways; the other members are empty.
struct PictureSource {
  std::string data;       // bytes of its file: PNG, JPEG or WebP
  std::string image_url;  // a data URL, or a URL of a host from which the server may fetch pictures
  std::string file_id;    // the handle of an uploaded file

  bool operator==(const PictureSource&) const = default;
};

// INVALID_ARGUMENT unless exactly one member is given.
absl::Status CheckRules(const PictureSource& source);

// A request of the command line, HTTP or gRPC. For empty texts and absent values, the interface's default applies, else
// the model's.
struct ImageRequest {
  std::string prompt;
  std::optional<std::string> negative_prompt;
  // Prompts for the second and third text encoder; empty: the same as the first.
  std::string prompt_2, prompt_3, negative_prompt_2, negative_prompt_3;
  std::optional<int64_t> width;
  std::optional<int64_t> height;
  std::optional<int64_t> steps;
  std::optional<double> guidance_scale;
  std::optional<uint64_t> seed;  // seed of the first image; those of the others count up from it; absent: random
  std::optional<int64_t> count;
  std::string sampler;
  std::string noise = "tessera";
  std::optional<bool> clean_caption;
  std::optional<bool> resolution_binning;
  std::optional<int64_t> max_sequence_length;
  // A model refuses the following fields if it does not read them.
  std::optional<double> true_cfg_scale;
  std::optional<double> guidance_rescale;
  std::optional<double> cfg_normalization, cfg_truncation;
  std::optional<int64_t> clip_skip;
  std::vector<int64_t> skip_layers;
  std::optional<double> skip_layer_scale, skip_layer_start, skip_layer_stop;
  std::optional<int64_t> original_width, original_height, crop_top, crop_left;
  std::vector<AdapterRequest> loras;  // in the order in which they are applied
  // Only the API has the following fields.
  std::string model;          // id or alias; empty: the first model
  std::string size;           // "auto" or "WIDTHxHEIGHT"; replaces width and height
  std::string quality;        // a preset number of steps; num_inference_steps takes precedence
  std::string complexity;     // checked, without effect
  std::string output_format;  // png, jpeg, webp
  std::optional<int64_t> output_compression;
  std::string background;  // "transparent" is refused: pictures have no alpha channel
  std::string style;       // checked, without effect
  std::string moderation;  // checked, without effect
  std::string user;
  std::string safety_identifier;  // the name that newer clients use for `user`; takes precedence unless empty
  std::optional<int64_t> partial_images;
  std::optional<int64_t> priority;
  std::optional<int64_t> deadline_ms;
  std::vector<PictureSource> images;  // what the image begins from, or is made after
  std::vector<PictureSource> mask;    // at most one
  std::optional<double> strength;
  std::string input_fidelity;  // checked, without effect
};

}  // namespace tessera::server

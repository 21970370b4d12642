// Formats and parses the text that makes an image reproducible, in the form that AUTOMATIC1111's web UI introduced and
// that image browsers read: the prompt, an optional line "Negative prompt: …", and one last line of "Key: value" pairs.
//
//     a red apple
//     Negative prompt: blurry
//     Steps: 20, Sampler: dpm++2, CFG scale: 4.5, Seed: 1, Size: 512x512, Model: emoji, Version: tessera 0.1.0
//
// Low-rank adapters are "Loras": NAME:SCALE:SHA-256 for each, separated by blanks. A value with a comma, colon, quote,
// line break, or a blank at an end is written as a JSON string. Readers of this form strip lines and treat any line
// that begins with "Negative prompt:" as the start of the negative prompt. If that would not give a prompt back
// exactly, the last line also contains the whole prompt as the JSON string "Exact prompt" or "Exact negative prompt",
// or says "Has negative prompt: false". So FormatParameters and ParseParameters are inverse for every prompt, of any
// bytes; an empty negative prompt differs from none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fields/fields.h"
#include "control/parameters/adapter_use.h"
#include "control/parameters/prompt_options.h"

namespace tessera::server {

// Empty strings, optionals without a value and options with their defaults are left out of the text.
struct ImageParameters {
  std::string prompt;
  std::optional<std::string> negative_prompt;
  int steps = 0;
  std::string sampler;
  std::optional<double> guidance_scale;  // absent if the model takes none
  uint64_t seed = 0;
  int width = 0;
  int height = 0;
  std::string model;
  std::string model_digest;    // hexadecimal, of configurations and headers; the text has its first 10 digits
  std::string weights_digest;  // same form, of all loaded bytes
  std::string noise;
  std::string dtype;
  std::string device;
  std::string layout;           // of the ranks that made it: "cfg=2", "serial"
  std::string instruction_set;  // that the ranks used on a CPU
  std::string text_encoders;    // their placement
  std::string autoencoder;      // its placement
  std::string storage;          // of quantized weights; empty if they are plain
  std::string products;         // of the transformer's blocks (control::ProductsText); empty if they are plain
  // How far the certificate of model and layout says that these products drift from plain ones: the relative error of
  // the last latents. Absent if no certificate says it.
  std::optional<double> products_drift;
  std::optional<bool> clean_caption;
  std::optional<bool> resolution_binning;
  std::optional<int> max_sequence_length;
  control::PromptOptions options;
  std::vector<control::AdapterUse> adapters;  // without their files
  std::string images, mask;                   // names of pictures (PictureNames), separated by blanks
  std::optional<double> strength;             // absent unless the image began from a picture
  std::string version;                        // program and version: "tessera 0.1.0"
  // Further pairs. A key has at least two characters of A-Z a-z 0-9 _ - / with blanks only inside.
  std::map<std::string, std::string> extra;

  bool operator==(const ImageParameters&) const = default;
};

// Names are those of the fields of requests (server/api/request_fields.h), or the keys of the text. The text treats the
// version and the further pairs specially.
constexpr auto FieldsOf(const ImageParameters*) {
  using base::Field;
  using P = ImageParameters;
  return std::tuple(
      Field("prompt", &P::prompt), Field("negative_prompt", &P::negative_prompt), Field("steps", &P::steps),
      Field("sampler", &P::sampler), Field("guidance_scale", &P::guidance_scale), Field("seed", &P::seed),
      Field("width", &P::width), Field("height", &P::height), Field("Model", &P::model),
      Field("Model hash", &P::model_digest), Field("Weights hash", &P::weights_digest), Field("noise", &P::noise),
      Field("Dtype", &P::dtype), Field("Device", &P::device), Field("Text encoders", &P::text_encoders),
      Field("VAE", &P::autoencoder), Field("Weight storage", &P::storage), Field("Products", &P::products),
      Field("Products drift", &P::products_drift), Field("Layout", &P::layout),
      Field("Instruction set", &P::instruction_set), Field("clean_caption", &P::clean_caption),
      Field("resolution_binning", &P::resolution_binning), Field("max_sequence_length", &P::max_sequence_length),
      Field("loras", &P::adapters), Field("Images", &P::images), Field("Mask", &P::mask),
      Field("Denoising strength", &P::strength), base::Inline(&P::options));
}

// Returns the options that differ from their defaults in the form of the text: "True CFG scale" and "4". The order is
// fixed.
std::vector<std::pair<std::string, std::string>> OptionPairs(const control::PromptOptions& options);

// A NUL in a prompt becomes a blank in the plain lines. INVALID_ARGUMENT for a number that is not finite, and for an
// extra key that is malformed or the name of a field.
[[nodiscard]] absl::StatusOr<std::string> FormatParameters(const ImageParameters& parameters);

// Also reads the texts of other programs if they contain steps, seed and size; unknown pairs go to `extra`.
// INVALID_ARGUMENT names the pair that is missing, repeated or malformed.
[[nodiscard]] absl::StatusOr<ImageParameters> ParseParameters(std::string_view text);

}  // namespace tessera::server

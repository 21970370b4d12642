// The text that makes an image reproducible, in the form that AUTOMATIC1111's web UI introduced and that image
// browsers read: the prompt, a line "Negative prompt: …" where there is one, and one last line of "Key: value" pairs.
//
//     a red apple
//     Negative prompt: blurry
//     Steps: 20, Sampler: dpm++2, CFG scale: 4.5, Seed: 1, Size: 512x512, Model: emoji, Version: tessera 0.1.0
//
// Low-rank adapters are "Loras", a text of NAME:SCALE:SHA-256 for each with blanks between them. A value with a comma,
// colon, quote, line break or blank at an end is written as a JSON string. Readers of that form strip lines and take
// any line that begins with "Negative prompt:" for the start of the negative prompt. Where that would not give a prompt
// back exactly, the last line also carries it whole, as the JSON string "Exact prompt" or "Exact negative prompt", or
// says "Has negative prompt: false". So FormatParameters and ParseParameters are inverse for every prompt, of any
// bytes; a negative prompt that is empty differs from none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "control/adapter_use.h"
#include "control/prompt_options.h"

namespace tessera::server {

// Empty strings, optionals without a value and options with their defaults are left out of the text.
struct ImageParameters {
  std::string prompt;
  std::optional<std::string> negative_prompt;
  int steps = 0;
  std::string sampler;
  std::optional<double> guidance_scale;  // absent for a model that takes none
  uint64_t seed = 0;
  int width = 0;
  int height = 0;
  std::string model;
  std::string model_digest;    // hexadecimal, of configurations and headers; the text keeps the first 10 digits
  std::string weights_digest;  // likewise, of every byte that was loaded
  std::string noise;
  std::string dtype;
  std::string device;
  std::string layout;           // of the ranks that made it: "cfg=2", "serial"
  std::string instruction_set;  // that the ranks computed with on a CPU
  std::string text_encoders;    // their placement
  std::string autoencoder;      // its placement
  std::optional<bool> clean_caption;
  std::optional<bool> resolution_binning;
  std::optional<int> max_sequence_length;
  control::PromptOptions options;
  std::vector<control::AdapterUse> adapters;  // without their files
  std::string version;                        // program and version: "tessera 0.1.0"
  // Further pairs. A key has at least two characters of A-Z a-z 0-9 _ - / and blanks inside.
  std::map<std::string, std::string> extra;

  bool operator==(const ImageParameters&) const = default;
};

// The options that differ from their defaults, as the text spells them: "True CFG scale" and "4". In a fixed order.
std::vector<std::pair<std::string, std::string>> OptionPairs(const control::PromptOptions& options);

// Every NUL of a prompt is a blank in the plain lines. kInvalidArgument for a number that is not finite and for an
// extra key that is malformed or the name of a field.
[[nodiscard]] absl::StatusOr<std::string> FormatParameters(const ImageParameters& parameters);

// Also reads what other programs wrote, as long as steps, seed and size are there; unknown pairs go to
// `extra`. kInvalidArgument names the pair that is missing, repeated or malformed.
[[nodiscard]] absl::StatusOr<ImageParameters> ParseParameters(std::string_view text);

}  // namespace tessera::server

#include "models/autoencoder/qwen_autoencoder_config.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {
namespace {

constexpr size_t kMaxLevels = 8;

// Reads temperal_downsample (so spelt), a list of true and false.
std::vector<bool> ReadHalvesTime(base::ConfigReader& reader, size_t reductions) {
  constexpr char kKey[] = "temperal_downsample";
  reader.Ignore({kKey});
  if (!reader.Has(kKey)) {
    reader.AddError(kKey, "it is missing");
    return {};
  }
  const base::Json& list = *reader.json().Find(kKey);
  std::vector<bool> values;
  for (const base::Json& item : list.items()) {
    if (item.AsBool()) values.push_back(*item.AsBool());
  }
  if (!list.is_array() || values.size() != list.items().size() || values.size() != reductions) {
    reader.AddError(kKey, absl::StrCat("it must be a list of ", reductions,
                                       " values, true or false: one fewer than the entries of dim_mult"));
  }
  return values;
}

// Reads a required number for each latent channel.
std::vector<double> ReadLatentNumbers(base::ConfigReader& reader, const char* key, int64_t channels) {
  const std::vector<double> values = reader.Numbers(key, {});
  if (static_cast<int64_t>(values.size()) != channels) {
    reader.AddError(key, absl::StrCat("it must have ", channels, " numbers, one for each channel of z_dim"));
  }
  return values;
}

}  // namespace

absl::StatusOr<QwenAutoencoderConfig> ParseQwenAutoencoderConfig(base::ConfigReader& reader) {
  QwenAutoencoderConfig config;
  config.image_channels = reader.Int("input_channels", 3, 3, 3);
  config.latent_channels = reader.Int("z_dim", 16, 1, 1024);
  config.width = reader.Int("base_dim", 96, 1, 4096);
  config.multipliers = reader.Ints("dim_mult", {1, 2, 4, 4}, 1, 64);
  config.residuals = reader.Int("num_res_blocks", 2, 1, 64);
  reader.Ignore({"dropout"});
  if (!reader.Numbers("attn_scales", {}).empty()) {
    reader.AddError("attn_scales", "it must be empty: attention is computed in the middle blocks only");
  }
  if (config.multipliers.empty() || config.multipliers.size() > kMaxLevels) {
    reader.AddError("dim_mult", absl::StrCat("it must have 1 to ", kMaxLevels, " entries"));
    return reader.status();
  }
  for (int64_t level = 1; level < config.levels(); ++level) {
    if (config.channels(level) % 2 == 0) continue;
    reader.AddError("dim_mult", absl::StrCat("base_dim = ", config.width,
                                             " times each entry after the first must be an even number of channels"));
    break;
  }
  config.halves_time = ReadHalvesTime(reader, config.multipliers.size() - 1);
  config.means = ReadLatentNumbers(reader, "latents_mean", config.latent_channels);
  config.deviations = ReadLatentNumbers(reader, "latents_std", config.latent_channels);
  const auto is_positive = [](double deviation) { return std::isfinite(deviation) && deviation > 0; };
  if (!std::ranges::all_of(config.deviations, is_positive)) {
    reader.AddError("latents_std", "each entry must be greater than 0");
  }
  RETURN_IF_ERROR(reader.status());
  return config;
}

DecoderShape DecoderOf(const QwenAutoencoderConfig& config) {
  DecoderShape decoder{.residuals = config.residuals + 1,
                       .latent_channels = config.latent_channels,
                       .image_channels = config.image_channels};
  for (int64_t level = 0; level < config.levels(); ++level) {
    const int64_t out = config.channels(level);
    decoder.levels.push_back({.in = config.decoder_input(level), .out = out, .enlarged = out / 2});
  }
  return decoder;
}

}  // namespace tessera::models

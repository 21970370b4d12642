#include "client/cli/models/published_models.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/text/nearest_name.h"

namespace tessera::client {
namespace {

constexpr size_t kMaxSuggestions = 4;

// Each size counts the weights once: transformer, text encoders and autoencoder in the precision in which they are
// published.
constexpr PublishedModel kPublishedModels[] = {
    {"Tongyi-MAI/Z-Image-Turbo", "ZImagePipeline", 32.8, "apache-2.0", false},
    {"Tongyi-MAI/Z-Image", "ZImagePipeline", 20.5, "apache-2.0", false},
    {"black-forest-labs/FLUX.2-klein-4B", "Flux2KleinPipeline", 16.0, "apache-2.0", false},
    {"black-forest-labs/FLUX.2-klein-base-4B", "Flux2KleinPipeline", 16.0, "apache-2.0", false},
    {"Qwen/Qwen-Image-2512", "QwenImagePipeline", 57.7, "apache-2.0", false},
    {"Qwen/Qwen-Image", "QwenImagePipeline", 57.7, "apache-2.0", false},
    {"Qwen/Qwen-Image-Edit-2511", "QwenImageEditPlusPipeline", 57.7, "apache-2.0", false},
    {"Qwen/Qwen-Image-Edit-2509", "QwenImageEditPlusPipeline", 57.7, "apache-2.0", false},
    {"Qwen/Qwen-Image-Edit", "QwenImageEditPipeline", 57.7, "apache-2.0", false},
    {"black-forest-labs/FLUX.1-schnell", "FluxPipeline", 33.7, "apache-2.0", true},
    {"black-forest-labs/FLUX.1-dev", "FluxPipeline", 33.7, "flux-1-dev-non-commercial-license", true},
    {"black-forest-labs/FLUX.1-Fill-dev", "FluxFillPipeline", 33.7, "flux-1-dev-non-commercial-license", true},
    {"black-forest-labs/FLUX.1-Kontext-dev", "FluxKontextPipeline", 33.7, "flux-1-dev-non-commercial-license", true},
    {"black-forest-labs/FLUX.2-dev", "Flux2Pipeline", 112.7, "flux-non-commercial-license", true},
    {"black-forest-labs/FLUX.2-klein-9b-kv", "Flux2KleinKVPipeline", 34.7, "flux-non-commercial-license", true},
    {"stabilityai/stable-diffusion-3-medium-diffusers", "StableDiffusion3Pipeline", 15.5, "stabilityai-ai-community",
     true},
    {"stabilityai/stable-diffusion-3.5-medium", "StableDiffusion3Pipeline", 16.3, "stabilityai-ai-community", true},
    {"stabilityai/stable-diffusion-3.5-large", "StableDiffusion3Pipeline", 27.6, "stabilityai-ai-community", true},
    {"stabilityai/stable-diffusion-3.5-large-turbo", "StableDiffusion3Pipeline", 27.6, "stabilityai-ai-community",
     true},
    {"PixArt-alpha/PixArt-XL-2-1024-MS", "PixArtAlphaPipeline", 21.8, "openrail++", false},
    {"PixArt-alpha/PixArt-Sigma-XL-2-1024-MS", "PixArtSigmaPipeline", 21.8, "openrail++", false},
    {"Tencent-Hunyuan/HunyuanDiT-v1.1-Diffusers", "HunyuanDiTPipeline", 14.4, "tencent-hunyuan-community", false},
    {"Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers", "HunyuanDiTPipeline", 14.4, "tencent-hunyuan-community", false},
    {"facebook/DiT-XL-2-256", "DiTPipeline", 3.0, "cc-by-nc-4.0", false},
    {"facebook/DiT-XL-2-512", "DiTPipeline", 3.0, "cc-by-nc-4.0", false},
};

constexpr std::string_view kFreeLicences[] = {"apache-2.0", "mit",       "bsd-2-clause", "bsd-3-clause",
                                              "cc0-1.0",    "cc-by-4.0", "isc",          "unlicense"};

// Letters and digits in small letters, so that "sd 3.5" and "flux1" find their models.
std::string Letters(std::string_view text) {
  std::string letters;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)))
      letters += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  return letters;
}

}  // namespace

absl::Span<const PublishedModel> PublishedModels() { return kPublishedModels; }

const PublishedModel* FindPublishedModel(std::string_view name) {
  const auto* found = std::ranges::find(kPublishedModels, name, &PublishedModel::name);
  return found == std::end(kPublishedModels) ? nullptr : found;
}

std::vector<const PublishedModel*> PublishedModelsLike(const std::string& text) {
  std::string wanted = Letters(text);
  if (wanted.starts_with("sd3")) wanted = "stablediffusion" + wanted.substr(2);
  std::vector<const PublishedModel*> models;
  if (wanted.size() < 2) return models;
  std::vector<std::string> names;
  for (const PublishedModel& model : kPublishedModels) {
    if (models.size() < kMaxSuggestions && absl::StrContains(Letters(model.name), wanted)) models.push_back(&model);
    names.push_back(std::string(model.name).substr(std::string_view(model.name).find('/') + 1));
  }
  if (!models.empty()) return models;
  const std::string nearest = base::NearestName(text.substr(text.find('/') + 1), names);
  const auto at = std::ranges::find(names, nearest);
  if (!nearest.empty()) models.push_back(&kPublishedModels[at - names.begin()]);
  return models;
}

std::string CommercialUseOf(std::string_view licence) {
  if (std::ranges::find(kFreeLicences, licence) != std::end(kFreeLicences)) return "yes";
  const bool is_refused = licence.find("non-commercial") != licence.npos ||
                          licence.find("noncommercial") != licence.npos || licence.starts_with("cc-by-nc");
  return is_refused ? "no" : "read it";
}

std::string AboutSize(const PublishedModel& model) { return absl::StrFormat("about %.1f GB", model.gigabytes); }

}  // namespace tessera::client

#include "control/model/pipelines.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::control {
namespace {

constexpr size_t kMaxShownBytes = 80;

// A family that is not run: the beginning of its classes, and a part of its repositories' names in small letters.
struct OtherFamily {
  std::string_view class_prefix;
  std::string_view name_part;
  std::string_view family;
};

constexpr OtherFamily kOtherFamilies[] = {
    {"StableDiffusionXL", "stable-diffusion-xl", "Stable Diffusion XL"},
    {"StableDiffusionXL", "sdxl", "Stable Diffusion XL"},
    {"StableDiffusionXL", "sd_xl", "Stable Diffusion XL"},
    {"StableDiffusion3", "sd3-controlnet", "Stable Diffusion 3 with a ControlNet or an image as input"},
    {"StableDiffusion", "stable-diffusion-v1", "Stable Diffusion 1 and 2"},
    {"StableDiffusion", "v1-5-pruned", "Stable Diffusion 1 and 2"},
    {"StableDiffusion", "stable-diffusion-1", "Stable Diffusion 1 and 2"},
    {"StableDiffusion", "stable-diffusion-2", "Stable Diffusion 1 and 2"},
    {"StableCascade", "stable-cascade", "Stable Cascade"},
    {"StableVideo", "stable-video-diffusion", "Stable Video Diffusion"},
    {"FluxControl", "flux.1-canny", "FLUX.1 with a control image"},
    {"FluxControl", "flux.1-depth", "FLUX.1 with a control image"},
    {"FluxPriorRedux", "flux.1-redux", "FLUX.1 Redux"},
    {"PixArtAlphaControlNet", "pixart-controlnet", "PixArt with a ControlNet"},
    {"HunyuanVideo", "hunyuanvideo", "HunyuanVideo"},
    {"HunyuanImage", "hunyuanimage", "HunyuanImage"},
    {"QwenImageEditInpaint", "qwen-image-edit-inpaint", "Qwen-Image-Edit with a mask"},
    {"QwenImage", "qwen-image-layered", "Qwen-Image with layers or a control image"},
    {"ZImage", "z-image-omni", "Z-Image-Omni"},
    {"Kandinsky", "kandinsky", "Kandinsky"},
    {"Kolors", "kolors", "Kolors"},
    {"Sana", "/sana", "Sana"},
    {"Lumina", "lumina", "Lumina"},
    {"AuraFlow", "auraflow", "AuraFlow"},
    {"Chroma", "chroma", "Chroma"},
    {"HiDream", "hidream", "HiDream"},
    {"CogView", "cogview", "CogView"},
    {"CogVideo", "cogvideo", "CogVideoX"},
    {"Wan", "/wan2", "Wan"},
    {"LTX", "ltx-video", "LTX-Video"},
    {"Mochi", "mochi", "Mochi"},
    {"Latte", "/latte", "Latte"},
    {"OmniGen", "omnigen", "OmniGen"},
    {"IFPipeline", "deepfloyd/if", "DeepFloyd IF"},
    {"Wuerstchen", "wuerstchen", "Wuerstchen"},
};

}  // namespace

std::string FamilyProblem(std::string_view family) {
  const auto append_family = [](std::string* out, const PipelineClass& known) { out->append(known.family); };
  return absl::StrCat("it is a model of ", std::string(family), ", which Tessera does not run; it runs ",
                      absl::StrJoin(kPipelineClasses, ", ", append_family));
}

std::string PipelineProblem(std::string_view class_name) {
  if (std::ranges::find(kPipelineClasses, class_name, &PipelineClass::class_name) != std::end(kPipelineClasses))
    return "";
  for (const OtherFamily& other : kOtherFamilies) {
    if (class_name.starts_with(other.class_prefix)) return FamilyProblem(other.family);
  }
  std::string shown(class_name.substr(0, kMaxShownBytes));
  std::ranges::replace_if(
      shown, [](char c) { return !absl::ascii_isgraph(static_cast<unsigned char>(c)); }, '?');
  return FamilyProblem(absl::StrCat("the pipeline ", shown));
}

std::string RepositoryProblem(std::string_view name) {
  const std::string lower = absl::AsciiStrToLower(std::string(name));
  for (const OtherFamily& other : kOtherFamilies) {
    if (lower.find(other.name_part) != lower.npos) return FamilyProblem(other.family);
  }
  return "";
}

}  // namespace tessera::control

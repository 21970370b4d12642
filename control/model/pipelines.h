// The pipelines that Tessera runs, by the class in model_index.json, and the names of families that it does not run.
// Both programs use it, so that a model is refused by its family before it is downloaded or converted. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace tessera::control {

struct PipelineClass {
  std::string_view class_name;  // _class_name of model_index.json
  std::string_view family;      // as its users call it
};

inline constexpr PipelineClass kPipelineClasses[] = {
    {"DiTPipeline", "DiT"},
    {"Flux2KleinKVPipeline", "FLUX.2 klein KV"},
    {"Flux2KleinPipeline", "FLUX.2 klein"},
    {"Flux2Pipeline", "FLUX.2 dev"},
    {"FluxFillPipeline", "FLUX.1 Fill"},
    {"FluxKontextPipeline", "FLUX.1 Kontext"},
    {"FluxPipeline", "FLUX.1"},
    {"HunyuanDiTPipeline", "HunyuanDiT"},
    {"PixArtAlphaPipeline", "PixArt-alpha"},
    {"PixArtSigmaPipeline", "PixArt-Sigma"},
    {"QwenImageEditPipeline", "Qwen-Image-Edit"},
    {"QwenImageEditPlusPipeline", "Qwen-Image-Edit-Plus"},
    {"QwenImagePipeline", "Qwen-Image"},
    {"StableDiffusion3Pipeline", "Stable Diffusion 3"},
    {"ZImagePipeline", "Z-Image"},
};

// Returns the reason for which a model of this family is refused, with the families that are run.
std::string FamilyProblem(std::string_view family);

// Returns why the class of a pipeline cannot be run, with its family and those that can; empty if it can be run.
std::string PipelineProblem(std::string_view class_name);

// The same for the name of a repository, such as "stabilityai/stable-diffusion-xl-base-1.0", whose family is known by
// its name; empty if it may be one that can be run.
std::string RepositoryProblem(std::string_view name);

}  // namespace tessera::control

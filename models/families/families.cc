#include "models/families/families.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "control/model/pipelines.h"

namespace tessera::models {
namespace {

constexpr FamilyEntry kFamilies[] = {
    {"DiTPipeline", "dit", DescribeDit, LoadDit},
    {"Flux2KleinKVPipeline", "flux2", DescribeFlux2KleinKv, LoadFlux2KleinKv},
    {"Flux2KleinPipeline", "flux2", DescribeFlux2Klein, LoadFlux2Klein},
    {"Flux2Pipeline", "flux2", DescribeFlux2, LoadFlux2},
    {"FluxFillPipeline", "flux", DescribeFlux, LoadFlux},
    {"FluxKontextPipeline", "flux", DescribeFlux, LoadFlux},
    {"FluxPipeline", "flux", DescribeFlux, LoadFlux},
    {"HunyuanDiTPipeline", "hunyuandit", DescribeHunyuanDiT, LoadHunyuanDiT},
    {"PixArtAlphaPipeline", "pixart", DescribePixArt, LoadPixArt},
    {"PixArtSigmaPipeline", "pixart", DescribePixArt, LoadPixArt},
    {"QwenImageEditPipeline", "qwen_image", DescribeQwenImage, LoadQwenImage},
    {"QwenImageEditPlusPipeline", "qwen_image", DescribeQwenImage, LoadQwenImage},
    {"QwenImagePipeline", "qwen_image", DescribeQwenImage, LoadQwenImage},
    {"StableDiffusion3Pipeline", "sd3", DescribeSd3, LoadSd3},
    {"ZImagePipeline", "z_image", DescribeZImage, LoadZImage},
};

}  // namespace

std::span<const FamilyEntry> Families() { return kFamilies; }

absl::StatusOr<const FamilyEntry*> FindFamily(std::string_view pipeline) {
  for (const FamilyEntry& entry : kFamilies) {
    if (entry.pipeline == pipeline) return &entry;
  }
  const auto append_name = [](std::string* out, const FamilyEntry& entry) { out->append(entry.pipeline); };
  return absl::InvalidArgumentError(absl::StrCat("model_index.json: _class_name is ", base::Quote(pipeline), "; ",
                                                 control::PipelineProblem(pipeline), "; the classes of these are ",
                                                 absl::StrJoin(Families(), ", ", append_name)));
}

}  // namespace tessera::models

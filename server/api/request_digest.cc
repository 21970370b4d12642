#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "server/api/image_request.h"

namespace tessera {
namespace {

// A text that differs wherever a field does: every value stands behind its length.
class CanonicalText {
 public:
  void Add(const std::string& value) { absl::StrAppend(&text_, value.size(), ":", value, ";"); }
  void Add(const std::optional<std::string>& value) { value ? Add(*value) : AddNothing(); }
  void Add(const std::optional<int64_t>& value) { value ? Add(absl::StrCat(*value)) : AddNothing(); }
  void Add(const std::optional<uint64_t>& value) { value ? Add(absl::StrCat(*value)) : AddNothing(); }
  void Add(const std::optional<bool>& value) { value ? Add(std::string(*value ? "true" : "false")) : AddNothing(); }
  void Add(const std::optional<double>& value) {
    // All bits: two numbers that print alike may differ.
    if (!value) return AddNothing();
    const double number = *value == 0 ? 0 : *value;
    Add(std::string(reinterpret_cast<const char*>(&number), sizeof(number)));
  }

  const std::string& text() const { return text_; }

 private:
  void AddNothing() { absl::StrAppend(&text_, "-;"); }

  std::string text_;
};

}  // namespace

std::string RequestDigest(const ImageRequest& request) {
  const GenerationRequest& generation = request.generation;
  CanonicalText canonical;
  const auto add = [&](const auto&... values) { (canonical.Add(values), ...); };
  add(request.model, request.seed, request.n, request.size, request.quality, request.output_format,
      request.output_compression, request.background, request.style, request.moderation, request.user,
      request.partial_images, request.priority, request.deadline_ms);
  add(generation.prompt, generation.negative_prompt, generation.prompt_2, generation.prompt_3,
      generation.negative_prompt_2, generation.negative_prompt_3, generation.steps, generation.guidance_scale,
      generation.sampler, generation.noise, generation.clean_caption, generation.resolution_binning,
      generation.max_sequence_length, generation.true_cfg_scale, generation.guidance_rescale, generation.clip_skip,
      absl::StrJoin(generation.skip_layers, ","), generation.skip_layer_scale, generation.skip_layer_start,
      generation.skip_layer_stop, generation.original_width, generation.original_height, generation.crop_top,
      generation.crop_left);
  // Fields that came later stand there only where they are given: what was digested before them keeps its digest.
  for (const auto& [name, value] :
       {std::pair("complexity", request.complexity), {"safety_identifier", request.safety_identifier}}) {
    if (!value.empty()) add(std::string(name), value);
  }
  return absl::BytesToHexString(Sha256Of(canonical.text()));
}

}  // namespace tessera

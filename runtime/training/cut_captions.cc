#include "runtime/training/cut_captions.h"

#include <memory>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_input.h"
#include "control/training/dataset.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/text_encoders/picture_processor.h"
#include "models/weights/model_folder.h"
#include "parallel/communicator.h"

namespace tessera::runtime {
namespace {

constexpr int64_t kMostPictures = 16;

}  // namespace

absl::StatusOr<std::string> FindCutCaptions(const std::string& model, std::string_view captions) {
  ASSIGN_OR_RETURN(const models::ModelFolder folder, models::ModelFolder::Open(model));
  ASSIGN_OR_RETURN(const models::FamilyEntry* entry, models::FindFamily(folder.class_name()));
  ASSIGN_OR_RETURN(const models::FamilyDescription described, entry->describe(folder));
  ASSIGN_OR_RETURN(const std::unique_ptr<models::Family> family, entry->load(folder, {.device = at::kMeta}));
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::string_view(captions.data(), captions.size()), '\0');
  // Which part of a text is read depends on the number of its pictures, and not on these.
  const bool holds_pictures = control::PromptHoldsPictures(described.pictures.fit);
  std::set<absl::string_view> named;
  std::vector<std::string> pictures;
  std::string first;
  for (size_t i = 0; i + 2 < parts.size(); i += 3) {
    int64_t pictures_of_prompt = 0;
    if (!absl::SimpleAtoi(parts[i + 1], &pictures_of_prompt) || pictures_of_prompt < 0 ||
        pictures_of_prompt > kMostPictures) {
      return absl::InvalidArgumentError(absl::StrCat(parts[i], ": ", parts[i + 1], " is no number of pictures"));
    }
    const absl::StatusOr<models::EncodedPrompt> encoded =
        family->Encode({.prompt = std::string(parts[i + 2]),
                        .options = {},
                        .clean_caption = described.default_clean_caption,
                        .max_sequence_length = described.default_max_sequence_length,
                        .height = described.default_height,
                        .width = described.default_width,
                        .pictures = holds_pictures ? models::MadeUpPromptPictures(pictures_of_prompt) : nullptr},
                       {.attention = attention, .tensor = one, .world = one});
    if (!encoded.ok()) {
      return absl::Status(encoded.status().code(), absl::StrCat(parts[i], ": ", encoded.status().message()));
    }
    if (encoded->warnings.empty()) continue;
    if (pictures.empty()) first = absl::StrJoin(encoded->warnings, "; ");
    if (named.insert(parts[i]).second) pictures.emplace_back(parts[i]);
  }
  return pictures.empty() ? "" : control::CutCaptionsText(pictures, first);
}

}  // namespace tessera::runtime

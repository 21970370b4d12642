#include "control/parameters/job_parameters.h"

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "base/text/number_text.h"
#include "control/parameters/picture_input.h"

namespace tessera::control {

absl::Status CheckRules(const JobParameters& job) {
  const SkipLayerGuidance& skip = job.options.skip_layers;
  if (skip.start > skip.stop) {
    return base::ErrorOfField("skip_layer_start",
                              absl::StrCat(" is ", skip.start, "; valid values are at most the stop, ", skip.stop));
  }
  return absl::OkStatus();
}

absl::Status CheckPictures(const JobParameters& job, PictureInput model) {
  const size_t images = job.images.size();
  if (job.strength <= 0) {
    return base::ErrorOfField(
        "strength", absl::StrCat(" is ", base::NumberText(job.strength), "; valid values are above 0, up to 1"));
  }
  if (images == 0) {
    if (!job.mask.empty()) return base::ErrorOfField("mask", " is given without an image; give the image too");
    if (job.strength < 1) return base::ErrorOfField("strength", " is given without an image; give the image too");
    if (model != PictureInput::kFill) return absl::OkStatus();
    return base::ErrorOfField("images", " are missing; this model fills in a part of an image: give it and its mask");
  }
  if (model == PictureInput::kNone) {
    return base::ErrorOfField("images", " are given; this model makes images from text alone, so leave them out");
  }
  if (const int most = MostPictures(model); images > static_cast<size_t>(most)) {
    return base::ErrorOfField(
        "images", absl::StrCat(" are ", images, "; this model takes ", most == 1 ? "one" : absl::StrCat(most)));
  }
  if (model == PictureInput::kFill && job.mask.empty()) {
    return base::ErrorOfField("mask", " is missing; this model fills in what a mask marks");
  }
  if (model != PictureInput::kReference) return absl::OkStatus();
  if (!job.mask.empty()) return base::ErrorOfField("mask", " is given; this model takes an image without a mask");
  if (job.strength == 1) return absl::OkStatus();
  return base::ErrorOfField("strength", absl::StrCat(" is ", base::NumberText(job.strength),
                                                     "; this model looks at an image and begins from noise, so only 1 "
                                                     "is valid"));
}

}  // namespace tessera::control

#include "control/parameters/job_parameters.h"

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "base/text/number_text.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"

namespace tessera::control {

absl::Status CheckRules(const JobParameters& job) {
  const SkipLayerGuidance& skip = job.options.skip_layers;
  if (skip.start > skip.stop) {
    return base::ErrorOfField("skip_layer_start",
                              absl::StrCat(" is ", skip.start, "; valid values are at most the stop, ", skip.stop));
  }
  return absl::OkStatus();
}

namespace {

// A job without pictures.
absl::Status CheckNoPictures(const JobParameters& job, const PictureRules& model) {
  if (!job.mask.empty()) return base::ErrorOfField("mask", " is given without an image; give the image too");
  if (job.strength < 1) return base::ErrorOfField("strength", " is given without an image; give the image too");
  if (!model.required) return absl::OkStatus();
  if (model.use == PictureInput::kFill) {
    return base::ErrorOfField("images", " are missing; this model fills in a part of an image: give it and its mask");
  }
  return base::ErrorOfField("images", " are missing; this model edits images: give at least one");
}

// A job of a model that looks at pictures.
absl::Status CheckReferences(const JobParameters& job, const PictureRules& model) {
  const bool begins = BeginsFromPicture(model, !job.mask.empty());
  if (!begins && job.strength < 1) {
    return base::ErrorOfField(
        "strength", absl::StrCat(" is ", base::NumberText(job.strength),
                                 model.mask != MaskRule::kNone
                                     ? "; without a mask this model looks at images and begins from noise, so only 1 "
                                       "is valid"
                                     : "; this model looks at an image and begins from noise, so only 1 is valid"));
  }
  for (const PictureUse& image : job.images) {
    if (begins || image.width == 0) continue;
    const absl::Status size = CheckReference(model.fit, {.width = image.width, .height = image.height});
    if (!size.ok()) return base::ErrorOfField("images", absl::StrCat(": a picture", std::string(size.message())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPictures(const JobParameters& job, const PictureRules& model) {
  const size_t images = job.images.size();
  if (job.strength <= 0) {
    return base::ErrorOfField(
        "strength", absl::StrCat(" is ", base::NumberText(job.strength), "; valid values are above 0, up to 1"));
  }
  if (images == 0) return CheckNoPictures(job, model);
  if (model.use == PictureInput::kNone) {
    return base::ErrorOfField("images", " are given; this model makes images from text alone, so leave them out");
  }
  if (images > static_cast<size_t>(model.most)) {
    return base::ErrorOfField("images", absl::StrCat(" are ", images, "; this model takes ",
                                                     model.most == 1 ? "one" : absl::StrCat("at most ", model.most)));
  }
  if (model.use == PictureInput::kFill && job.mask.empty()) {
    return base::ErrorOfField("mask", " is missing; this model fills in what a mask marks");
  }
  if (!job.mask.empty() && model.mask == MaskRule::kNone) {
    return base::ErrorOfField("mask", images == 1 ? " is given; this model takes an image without a mask"
                                                  : " is given; this model takes images without a mask");
  }
  return model.use == PictureInput::kReference ? CheckReferences(job, model) : absl::OkStatus();
}

}  // namespace tessera::control

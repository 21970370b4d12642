#include "server/metadata/image_metadata.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "base/files/sha256.h"
#include "base/text/utf8.h"
#include "control/host/device.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "server/api/request_fields.h"
#include "server/api/unused_parameters.h"
#include "server/metadata/parameters_text.h"

namespace tessera::server {

std::string PictureNames(absl::string_view key, absl::Span<const control::PictureUse> pictures) {
  if (key.empty()) return "";
  return absl::StrJoin(pictures, " ", [key](std::string* out, const control::PictureUse& picture) {
    out->append(absl::BytesToHexString(base::HmacSha256Of(key, picture.digest).substr(0, 16)));
  });
}

ImageParameters MetadataOf(const control::JobParameters& asked, const ImageOrigins& origins) {
  const auto& [sampler, model_name, model, placement, layout, weights, products_drift, picture_key] = origins;
  control::JobParameters job = asked;
  DropUnusedParameters(job, model);
  ImageParameters metadata;
  CopyFields(job, metadata);
  metadata.sampler = sampler;
  if (!TakesGuidance(model)) metadata.guidance_scale.reset();
  metadata.model = base::ReplaceInvalidUtf8(model_name);
  metadata.model_digest = model.digest;
  metadata.weights_digest = weights;
  metadata.dtype = base::EnumName(placement.dtype);
  metadata.device = placement.device;
  metadata.layout = parallel::LayoutText(layout);
  if (control::IsDevice(placement.device, control::DeviceKind::kCpu)) metadata.instruction_set = model.instruction_set;
  const control::Placement &used = placement.placement, usual;
  if (used.text_encoders != usual.text_encoders) metadata.text_encoders = base::EnumName(used.text_encoders);
  if (used.autoencoder != usual.autoencoder) metadata.autoencoder = base::EnumName(used.autoencoder);
  metadata.storage = control::StorageText(used.weights, control::QuantizationOf(model));
  metadata.products = control::ProductsText(used.products);
  const bool is_certified_kind = job.adapters.empty() && job.images.empty();
  if (!metadata.products.empty() && is_certified_kind) metadata.products_drift = products_drift;
  if (!model.default_clean_caption) metadata.clean_caption.reset();
  if (job.max_sequence_length == 0) metadata.max_sequence_length.reset();
  for (control::AdapterUse& adapter : metadata.adapters) adapter.file.clear();
  metadata.images = PictureNames(picture_key, job.images);
  metadata.mask = PictureNames(picture_key, job.mask);
  if (!job.images.empty()) metadata.strength = job.strength;
  metadata.version = kProgramVersion;
  return metadata;
}

ImageRequest RequestOf(const ImageParameters& metadata) {
  ImageRequest request;
  CopyFields(metadata, request);
  // Options with their defaults may be unknown to the model.
  const control::PromptOptions usual;
  base::ForEachField(
      [&request](const auto& field, const auto& value, const auto& usual_value) {
        if (value != usual_value) return;
        VisitField(field.name, request, [](const auto&, auto& asked) { asked = std::decay_t<decltype(asked)>(); });
      },
      metadata.options, usual);
  return request;
}

}  // namespace tessera::server

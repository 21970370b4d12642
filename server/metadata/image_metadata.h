// Converts between a request and the generation parameters that an image file records.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "parallel/plan/layout.h"
#include "server/api/generation_request.h"
#include "server/api/request_values.h"

namespace tessera::control {
struct JobParameters;
struct LoadParameters;
struct ModelDescription;
struct PictureUse;
}  // namespace tessera::control

namespace tessera::server {

struct ImageParameters;

inline constexpr char kProgramVersion[] = "tessera " TESSERA_VERSION;

// How an image was generated, apart from its request.
struct ImageOrigins {
  std::string sampler;     // as the worker names it
  std::string model_name;  // recorded with the digests instead of the path
  const control::ModelDescription& model;
  const control::LoadParameters& placement;
  parallel::Layout layout;
  std::string weights;  // Loaded::contents; empty if unknown
  // LayoutCertification::products_drift. Certificates are for images without adapters and pictures, so that others do
  // not name it.
  std::optional<double> products_drift = {};
  std::string picture_key = {};  // for PictureNames; empty: pictures are not named
};

// Names pictures by their digests in a form that only those who have `key` can check, so that no one else can test
// which private pictures an image was made from: 32 hexadecimal digits each, separated by blanks. Empty without a key.
std::string PictureNames(absl::string_view key, absl::Span<const control::PictureUse> pictures);

// Returns the metadata for `asked`, without parameters that have no effect (server/api/unused_parameters.h). It
// includes the layout and, on a CPU, the instruction set, because both affect the last bits of an image in addition to
// the request and the weights.
ImageParameters MetadataOf(const control::JobParameters& asked, const ImageOrigins& origins);

// Returns the request that reproduces the image.
ImageRequest RequestOf(const ImageParameters& metadata);

}  // namespace tessera::server

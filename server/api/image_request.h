// A request for images in the terms of the public API, as every edge reads it, and the one way from there to a
// validated JobRequest. Fields and messages use the names of the API, which HTTP and gRPC share.
//
// Every error is INVALID_ARGUMENT (NOT_FOUND for a model), names the field, its value, what is valid and the nearest
// valid choice; ErrorField (server/api/generation_request.h) tells the field. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/api/generation_request.h"
#include "server/api/image_service.h"
#include "server/api/job.h"

namespace tessera::server {

// What one server allows beyond what its models allow.
struct RequestLimits {
  int64_t max_images = 10;       // of one request
  int64_t max_pixels = 1 << 24;  // of one image
  int64_t max_steps = 1000;

  bool operator==(const RequestLimits&) const = default;
};

// `random_seed` is used where the request names none.
absl::StatusOr<JobRequest> ValidateImageRequest(const ImageRequest& request, absl::Span<const ServedModel> models,
                                                const RequestLimits& limits, uint64_t random_seed);

// The model with this id or alias, the first for an empty name, else the one with an adapter of this name or the one
// that answers to OpenAI's names where this is one of them; NOT_FOUND lists the valid ones.
absl::StatusOr<const ServedModel*> FindModel(absl::string_view name, absl::Span<const ServedModel> models);

// What a name means: a model, or an adapter of one.
struct NamedModel {
  const ServedModel* model = nullptr;
  const ServedAdapter* adapter = nullptr;  // null: the name is the model's
};

// The same for names of adapters too, where no model has the name.
absl::StatusOr<NamedModel> FindNamed(absl::string_view name, absl::Span<const ServedModel> models);

// Whether OpenAI's clients offer images of a model of this name, or may tomorrow: their names begin with gpt-image-,
// chatgpt-image- or dall-e-.
bool IsOpenAiImageModel(absl::string_view name);

// Below 2^48: JSON readers that know only doubles keep it exactly, and the seeds that count up from it.
uint64_t RandomSeed();

// "png", "jpeg", "webp": as requests and answers spell it, and the media type.
std::string OutputFormatName(ImageFormat format);
std::string MediaType(ImageFormat format);

// SHA-256 in hexadecimal over every field, for idempotency: what the caller sent, before a seed is chosen.
std::string RequestDigest(const ImageRequest& request);

}  // namespace tessera::server

// Validates requests in the terms of the public API, which HTTP and gRPC share, and converts them to JobRequests.
// Fields and messages use the API's names.
//
// Every error is INVALID_ARGUMENT (NOT_FOUND for a model) and names the field, its value, what is valid and the nearest
// valid choice; ErrorField (server/api/field_checks.h) returns the field. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/api/request_limits.h"

namespace tessera::server {

struct ImageRequest;
struct JobRequest;
struct RequestPictures;
struct ServedAdapter;
struct ServedModel;
enum class ImageFormat : uint8_t;

// `random_seed` is used if the request has no seed, and `pictures` in place of the request's.
absl::StatusOr<JobRequest> ValidateImageRequest(const ImageRequest& request, absl::Span<const ServedModel> models,
                                                const RequestLimits& limits, uint64_t random_seed);
absl::StatusOr<JobRequest> ValidateImageRequest(const ImageRequest& request, absl::Span<const ServedModel> models,
                                                const RequestLimits& limits, uint64_t random_seed,
                                                const RequestPictures& pictures);

// Returns the model with this id or alias; the first model for an empty name, and for `default`; else the model with an
// adapter of this name, or the model that answers to OpenAI's names if this is one of them. NOT_FOUND lists the valid
// names.
absl::StatusOr<const ServedModel*> FindModel(absl::string_view name, absl::Span<const ServedModel> models);

// The meaning of a name: a model or an adapter of a model.
struct NamedModel {
  const ServedModel* model = nullptr;
  const ServedAdapter* adapter = nullptr;  // null if the name is a model's
};

// Like FindModel, but also returns the adapter if the name is an adapter's and no model's.
absl::StatusOr<NamedModel> FindNamed(absl::string_view name, absl::Span<const ServedModel> models);

// Names the model of a request to edit pictures that names none, or one of OpenAI's that no model has: the first that
// edits by instruction. INVALID_ARGUMENT if there is none; other models that take pictures are used only when named.
absl::Status NameEditModel(absl::Span<const ServedModel> models, ImageRequest& request);

// Whether OpenAI's clients use, or may use in future, this name for an image model: it begins with gpt-image-,
// chatgpt-image- or dall-e-.
bool IsOpenAiImageModel(absl::string_view name);

// Returns a random seed below 2^48: JSON readers that only have doubles represent it exactly, and also the seeds that
// count up from it.
uint64_t RandomSeed();

// The format's name in requests and responses ("png", "jpeg", "webp") and its media type.
std::string OutputFormatName(ImageFormat format);
std::string MediaType(ImageFormat format);

// SHA-256 in hexadecimal over every field as the caller sent it, before a seed is chosen. Used for idempotency.
std::string RequestDigest(const ImageRequest& request);

}  // namespace tessera::server

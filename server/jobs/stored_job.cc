#include "server/jobs/stored_job.h"

#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "control/parameters/job_parameters_wire.h"
#include "server/api/generation_request.h"
#include "server/api/job.h"
#include "tessera/internal/stored_job.pb.h"

namespace tessera::server {
namespace {

namespace wire = internal::stored;

// A reader of version 1 knows no adapters, one of version 2 no pictures, and one of version 3 no limits of guidance;
// each would make a different image without them.
constexpr uint32_t kReader = 4;
constexpr uint32_t kFirstReader = 1;
constexpr uint32_t kReaderOfAdapters = 2;
constexpr uint32_t kReaderOfPictures = 3;
constexpr uint32_t kReaderOfGuidanceLimits = 4;
constexpr size_t kMaxTextBytes = 32768;
constexpr int32_t kMaxSide = 65536;
constexpr int64_t kMaxTimeoutMicroseconds = int64_t{366} * 24 * 3600 * 1000000;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the stored job is damaged: ", what));
}

bool InRange(double value, double low, double high) { return value >= low && value <= high; }

bool IsText(const std::string& text, size_t limit = kMaxTextBytes) {
  return text.size() <= limit && text.find('\0') == std::string::npos && base::FirstInvalidUtf8(text) == text.size();
}

absl::Status TooNew(uint32_t minimum_reader) {
  if (minimum_reader <= kReader) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the job was stored by a newer version of this program, which this version "
      "cannot read");
}

absl::StatusOr<ImageFormat> FromWire(wire::ImageFormat format) {
  switch (format) {
    case wire::IMAGE_FORMAT_PNG:
      return ImageFormat::kPng;
    case wire::IMAGE_FORMAT_JPEG:
      return ImageFormat::kJpeg;
    case wire::IMAGE_FORMAT_WEBP:
      return ImageFormat::kWebp;
    default:
      return Damaged("its image format is not known");
  }
}

wire::ImageFormat ToWire(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return wire::IMAGE_FORMAT_JPEG;
    case ImageFormat::kWebp:
      return wire::IMAGE_FORMAT_WEBP;
    case ImageFormat::kPng:
      break;
  }
  return wire::IMAGE_FORMAT_PNG;
}

absl::Status CheckJob(const StoredJob& job) {
  const JobRequest& request = job.request;
  if (job.tenant.empty() || !IsText(job.tenant, kMaxTenantBytes) || request.model.empty() || !IsText(request.model) ||
      !IsText(request.user) || !IsText(job.trace_parent)) {
    return Damaged("a name is not valid text");
  }
  if (!InRange(request.count, 1, static_cast<double>(kMaxImageCount))) return Damaged("its count is out of range");
  if (request.output.quality && !InRange(*request.output.quality, 1, 100)) {
    return Damaged("its output quality is out of range");
  }
  if (!InRange(request.partial_images, 0, kMaxPartialImages) ||
      !InRange(request.priority, kMinPriority, kMaxPriority)) {
    return Damaged("its priority or number of previews is out of range");
  }
  if (request.timeout &&
      (*request.timeout <= absl::ZeroDuration() || *request.timeout > absl::Microseconds(kMaxTimeoutMicroseconds))) {
    return Damaged("its deadline is out of range");
  }
  if (!job.idempotency_key_hash.empty() && job.idempotency_key_hash.size() != 32) {
    return Damaged("its idempotency key is out of range");
  }
  const absl::Status parameters = base::CheckFields(request.parameters);
  return parameters.ok() ? parameters : Damaged(parameters.message());
}

uint32_t MinimumReader(const control::JobParameters& parameters) {
  const control::PromptOptions usual;
  if (parameters.options.cfg_normalization != usual.cfg_normalization ||
      parameters.options.cfg_truncation != usual.cfg_truncation) {
    return kReaderOfGuidanceLimits;
  }
  if (!parameters.images.empty()) return kReaderOfPictures;
  return parameters.adapters.empty() ? kFirstReader : kReaderOfAdapters;
}

}  // namespace

absl::StatusOr<std::string> SerializeJob(const StoredJob& job) {
  if (absl::Status status = CheckJob(job); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the job cannot be stored: ", status.message()));
  }
  const JobRequest& request = job.request;
  wire::Job message;
  message.set_minimum_reader(MinimumReader(request.parameters));
  message.set_tenant(job.tenant);
  message.set_model(request.model);
  ToWire(request.parameters, message.mutable_parameters());
  // The process that starts the job knows where the files are.
  auto& stored = *message.mutable_parameters();
  for (auto& adapter : *stored.mutable_loras()) adapter.clear_file();
  for (auto& image : *stored.mutable_images()) image.clear_file();
  for (auto& mask : *stored.mutable_mask()) mask.clear_file();
  // As rows were before there were pictures and limits of guidance.
  if (request.parameters.images.empty()) stored.clear_strength();
  if (request.parameters.options.cfg_truncation == control::PromptOptions().cfg_truncation)
    stored.clear_cfg_truncation();
  message.set_count(request.count);
  message.set_format(ToWire(request.output.format));
  if (request.output.quality) message.set_quality(*request.output.quality);
  message.set_partial_images(request.partial_images);
  message.set_priority(request.priority);
  if (request.timeout) message.set_timeout_us(absl::ToInt64Microseconds(*request.timeout));
  message.set_user(request.user);
  message.set_trace_parent(job.trace_parent);
  message.set_idempotency_key_hash(job.idempotency_key_hash);
  return message.SerializeAsString();
}

absl::StatusOr<StoredJob> ParseStoredJob(absl::string_view bytes) {
  StoredJob job;
  RETURN_IF_ERROR(ParseStoredJob(bytes, job));
  return job;
}

absl::Status ParseStoredJob(absl::string_view bytes, StoredJob& job) {
  static thread_local wire::Job message;  // its memory is reused: a recovery reads a million jobs
  if (bytes.size() > size_t{std::numeric_limits<int>::max()} ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Damaged("it cannot be read");
  }
  RETURN_IF_ERROR(TooNew(message.minimum_reader()));
  ASSIGN_OR_RETURN(const ImageFormat format, FromWire(message.format()));
  job.tenant = message.tenant();
  job.trace_parent = message.trace_parent();
  job.idempotency_key_hash = message.idempotency_key_hash();
  JobRequest& request = job.request;
  request.model = message.model();
  request.count = message.count();
  request.output.format = format;
  request.output.quality.reset();
  if (message.has_quality()) request.output.quality = message.quality();
  request.partial_images = message.partial_images();
  request.priority = message.priority();
  request.timeout.reset();
  if (message.has_timeout_us()) request.timeout = absl::Microseconds(message.timeout_us());
  request.user = message.user();
  FromWire(message.parameters(), request.parameters);
  return CheckJob(job);
}

std::string SerializeImage(const StoredImage& image) {
  wire::Image message;
  message.set_minimum_reader(kFirstReader);
  message.set_width(image.origin.width);
  message.set_height(image.origin.height);
  message.set_format(ToWire(image.origin.format));
  message.set_layout(image.origin.layout);
  message.set_approximate(!image.origin.lossless);
  for (const std::string& warning : image.origin.warnings) message.add_warnings(warning);
  message.set_file(image.file);
  message.set_bytes(image.bytes);
  message.set_digest(image.digest);
  return message.SerializeAsString();
}

absl::StatusOr<StoredImage> ParseStoredImage(absl::string_view bytes) {
  wire::Image message;
  if (bytes.size() > size_t{std::numeric_limits<int>::max()} ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Damaged("its image cannot be found");
  }
  RETURN_IF_ERROR(TooNew(message.minimum_reader()));
  ASSIGN_OR_RETURN(const ImageFormat format, FromWire(message.format()));
  if (!InRange(message.width(), 1, kMaxSide) || !InRange(message.height(), 1, kMaxSide) ||
      message.digest().size() != 32 || message.file().empty() || !IsText(message.file(), kMaxTenantBytes) ||
      message.file().find("..") != std::string::npos || message.file()[0] == '/' || !IsText(message.layout())) {
    return Damaged("its image cannot be found");
  }
  StoredImage image{.file = message.file(), .bytes = message.bytes(), .digest = message.digest()};
  image.origin = {.width = message.width(),
                  .height = message.height(),
                  .format = format,
                  .layout = message.layout(),
                  .lossless = !message.approximate()};
  for (const std::string& warning : message.warnings()) {
    if (!IsText(warning)) return Damaged("a warning is not valid text");
    image.origin.warnings.push_back(warning);
  }
  return image;
}

}  // namespace tessera::server

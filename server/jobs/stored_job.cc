#include "server/jobs/stored_job.h"

#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "server/api/generation_request.h"
#include "tessera/internal/stored_job.pb.h"

namespace tessera {
namespace {

namespace wire = internal::stored;

constexpr uint32_t kReader = 1;
constexpr size_t kMaxTextBytes = 32768;
constexpr int32_t kMaxSide = 65536;
constexpr int32_t kMaxSteps = 1 << 20;
constexpr int32_t kMaxLayers = 1024;
constexpr double kMaxScale = 1000;
constexpr int64_t kMaxPatienceMicroseconds = int64_t{366} * 24 * 3600 * 1000000;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the stored job is damaged: ", what));
}

bool InRange(double value, double low, double high) { return value >= low && value <= high; }

bool IsText(const std::string& text, size_t limit = kMaxTextBytes) {
  return text.size() <= limit && text.find('\0') == std::string::npos && FirstInvalidUtf8(text) == text.size();
}

absl::Status TooNew(uint32_t minimum_reader) {
  if (minimum_reader <= kReader) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the job was stored by a newer version of this program, which this one must "
      "not misread");
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

void ToWire(const JobParameters& from, wire::Parameters* to) {
  to->set_prompt(from.prompt);
  if (from.negative_prompt) to->set_negative_prompt(*from.negative_prompt);
  to->set_height(from.height);
  to->set_width(from.width);
  to->set_steps(from.steps);
  to->set_guidance_scale(from.guidance_scale);
  to->set_seed(from.seed);
  to->set_sampler(from.sampler);
  to->set_noise(from.noise);
  to->set_clean_caption(from.clean_caption);
  to->set_resolution_binning(from.resolution_binning);
  to->set_max_sequence_length(from.max_sequence_length);
  const PromptOptions& options = from.options;
  to->set_prompt_2(options.prompt_2);
  to->set_prompt_3(options.prompt_3);
  to->set_negative_prompt_2(options.negative_prompt_2);
  to->set_negative_prompt_3(options.negative_prompt_3);
  to->set_true_cfg_scale(options.true_cfg_scale);
  to->set_guidance_rescale(options.guidance_rescale);
  to->set_clip_skip(options.clip_skip);
  for (int32_t layer : options.skip_layers.layers) to->add_skip_layers(layer);
  to->set_skip_layer_scale(options.skip_layers.scale);
  to->set_skip_layer_start(options.skip_layers.start);
  to->set_skip_layer_stop(options.skip_layers.stop);
  to->set_original_height(options.original_size.height);
  to->set_original_width(options.original_size.width);
  to->set_crop_top(options.original_size.crop_top);
  to->set_crop_left(options.original_size.crop_left);
}

PromptOptions OptionsFromWire(const wire::Parameters& from) {
  PromptOptions options{.prompt_2 = from.prompt_2(),
                        .prompt_3 = from.prompt_3(),
                        .negative_prompt_2 = from.negative_prompt_2(),
                        .negative_prompt_3 = from.negative_prompt_3(),
                        .guidance_rescale = from.guidance_rescale(),
                        .clip_skip = from.clip_skip()};
  if (from.has_true_cfg_scale()) options.true_cfg_scale = from.true_cfg_scale();
  options.skip_layers.layers.assign(from.skip_layers().begin(), from.skip_layers().end());
  if (from.has_skip_layer_scale()) options.skip_layers.scale = from.skip_layer_scale();
  if (from.has_skip_layer_start()) options.skip_layers.start = from.skip_layer_start();
  if (from.has_skip_layer_stop()) options.skip_layers.stop = from.skip_layer_stop();
  options.original_size = {.height = from.original_height(),
                           .width = from.original_width(),
                           .crop_top = from.crop_top(),
                           .crop_left = from.crop_left()};
  return options;
}

absl::Status CheckOptions(const PromptOptions& options) {
  for (const std::string* text :
       {&options.prompt_2, &options.prompt_3, &options.negative_prompt_2, &options.negative_prompt_3}) {
    if (!IsText(*text)) return Damaged("a prompt is no text");
  }
  const SkipLayerGuidance& skip = options.skip_layers;
  if (!InRange(options.true_cfg_scale, 0, kMaxScale) || !InRange(options.guidance_rescale, 0, 1) ||
      !InRange(skip.scale, 0, kMaxScale) || !InRange(skip.stop, 0, 1) || !InRange(skip.start, 0, skip.stop)) {
    return Damaged("its guidance is out of range");
  }
  if (!InRange(options.clip_skip, 0, kMaxLayers) || skip.layers.size() > size_t{kMaxLayers}) {
    return Damaged("its layers are out of range");
  }
  for (int32_t layer : skip.layers) {
    if (!InRange(layer, 0, kMaxLayers - 1)) return Damaged("its layers are out of range");
  }
  const OriginalSize& size = options.original_size;
  for (int32_t pixels : {size.height, size.width, size.crop_top, size.crop_left}) {
    if (!InRange(pixels, 0, kMaxSide)) return Damaged("its original size is out of range");
  }
  return absl::OkStatus();
}

absl::Status CheckParameters(const JobParameters& job) {
  if (!IsText(job.prompt) || (job.negative_prompt && !IsText(*job.negative_prompt))) {
    return Damaged("a prompt is no text");
  }
  if (!IsText(job.sampler, kMaxTenantBytes) || !IsText(job.noise, kMaxTenantBytes)) {
    return Damaged("a name is no text");
  }
  if (!InRange(job.height, 1, kMaxSide) || !InRange(job.width, 1, kMaxSide)) return Damaged("its size is out of range");
  if (!InRange(job.steps, 1, kMaxSteps)) return Damaged("its number of steps is out of range");
  if (!InRange(job.guidance_scale, 0, kMaxScale)) return Damaged("its guidance is out of range");
  if (!InRange(job.max_sequence_length, 0, kMaxSide)) return Damaged("its sequence length is out of range");
  return CheckOptions(job.options);
}

absl::Status CheckJob(const StoredJob& job) {
  const JobRequest& request = job.request;
  if (job.tenant.empty() || !IsText(job.tenant, kMaxTenantBytes) || request.model.empty() || !IsText(request.model) ||
      !IsText(request.user) || !IsText(job.trace_parent)) {
    return Damaged("a name is no text");
  }
  if (!InRange(request.count, 1, static_cast<double>(kMaxImageCount))) return Damaged("its count is out of range");
  if (request.output.quality && !InRange(*request.output.quality, 1, 100)) {
    return Damaged("its output quality is out of range");
  }
  if (!InRange(request.partial_images, 0, kMaxPartialImages) ||
      !InRange(request.priority, kMinPriority, kMaxPriority)) {
    return Damaged("its priority or number of previews is out of range");
  }
  if (request.patience &&
      (*request.patience <= absl::ZeroDuration() || *request.patience > absl::Microseconds(kMaxPatienceMicroseconds))) {
    return Damaged("its deadline is out of range");
  }
  if (!job.idempotency_key_hash.empty() && job.idempotency_key_hash.size() != 32) {
    return Damaged("its idempotency key is out of range");
  }
  return CheckParameters(request.parameters);
}

}  // namespace

absl::StatusOr<std::string> SerializeJob(const StoredJob& job) {
  if (absl::Status status = CheckJob(job); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the job cannot be stored: ", status.message()));
  }
  const JobRequest& request = job.request;
  wire::Job message;
  message.set_minimum_reader(1);
  message.set_tenant(job.tenant);
  message.set_model(request.model);
  ToWire(request.parameters, message.mutable_parameters());
  message.set_count(request.count);
  message.set_format(ToWire(request.output.format));
  if (request.output.quality) message.set_quality(*request.output.quality);
  message.set_partial_images(request.partial_images);
  message.set_priority(request.priority);
  if (request.patience) message.set_patience_us(absl::ToInt64Microseconds(*request.patience));
  message.set_user(request.user);
  message.set_trace_parent(job.trace_parent);
  message.set_idempotency_key_hash(job.idempotency_key_hash);
  return message.SerializeAsString();
}

absl::StatusOr<StoredJob> ParseStoredJob(absl::string_view bytes) {
  static thread_local wire::Job message;  // its memory serves the next one: a recovery reads a million
  if (bytes.size() > size_t{std::numeric_limits<int>::max()} ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Damaged("it cannot be read");
  }
  if (absl::Status status = TooNew(message.minimum_reader()); !status.ok()) return status;
  const absl::StatusOr<ImageFormat> format = FromWire(message.format());
  if (!format.ok()) return format.status();

  StoredJob job{.tenant = message.tenant(),
                .trace_parent = message.trace_parent(),
                .idempotency_key_hash = message.idempotency_key_hash()};
  JobRequest& request = job.request;
  request.model = message.model();
  request.count = message.count();
  request.output.format = *format;
  if (message.has_quality()) request.output.quality = message.quality();
  request.partial_images = message.partial_images();
  request.priority = message.priority();
  if (message.has_patience_us()) request.patience = absl::Microseconds(message.patience_us());
  request.user = message.user();
  const wire::Parameters& from = message.parameters();
  JobParameters& parameters = request.parameters;
  parameters.prompt = from.prompt();
  if (from.has_negative_prompt()) parameters.negative_prompt = from.negative_prompt();
  parameters.options = OptionsFromWire(from);
  parameters.height = from.height();
  parameters.width = from.width();
  parameters.steps = from.steps();
  parameters.guidance_scale = from.guidance_scale();
  parameters.seed = from.seed();
  parameters.sampler = from.sampler();
  parameters.noise = from.noise();
  parameters.clean_caption = from.clean_caption();
  parameters.resolution_binning = from.resolution_binning();
  parameters.max_sequence_length = from.max_sequence_length();
  if (absl::Status status = CheckJob(job); !status.ok()) return status;
  return job;
}

std::string SerializeImage(const StoredImage& image) {
  wire::Image message;
  message.set_minimum_reader(1);
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
  if (absl::Status status = TooNew(message.minimum_reader()); !status.ok()) return status;
  const absl::StatusOr<ImageFormat> format = FromWire(message.format());
  if (!format.ok()) return format.status();
  if (!InRange(message.width(), 1, kMaxSide) || !InRange(message.height(), 1, kMaxSide) ||
      message.digest().size() != 32 || message.file().empty() || !IsText(message.file(), kMaxTenantBytes) ||
      message.file().find("..") != std::string::npos || message.file()[0] == '/' || !IsText(message.layout())) {
    return Damaged("its image cannot be found");
  }
  StoredImage image{.file = message.file(), .bytes = message.bytes(), .digest = message.digest()};
  image.origin = {.width = message.width(),
                  .height = message.height(),
                  .format = *format,
                  .layout = message.layout(),
                  .lossless = !message.approximate()};
  for (const std::string& warning : message.warnings()) {
    if (!IsText(warning)) return Damaged("a warning is no text");
    image.origin.warnings.push_back(warning);
  }
  return image;
}

}  // namespace tessera

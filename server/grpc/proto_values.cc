#include "server/grpc/proto_values.h"

#include <optional>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/api/service_error.h"

namespace tessera {
namespace {

v1::JobState StateToProto(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return v1::JOB_STATE_QUEUED;
    case JobState::kRunning:
      return v1::JOB_STATE_RUNNING;
    case JobState::kDone:
      return v1::JOB_STATE_DONE;
    case JobState::kFailed:
      return v1::JOB_STATE_FAILED;
    case JobState::kCancelled:
      return v1::JOB_STATE_CANCELLED;
  }
  return v1::JOB_STATE_UNSPECIFIED;
}

}  // namespace

ImageRequest FromProto(const v1::ImageRequest& message) {
  ImageRequest request;
  GenerationRequest& generation = request.generation;
  request.model = message.model();
  generation.prompt = message.prompt();
  if (message.has_negative_prompt()) generation.negative_prompt = message.negative_prompt();
  request.size = message.size();
  if (message.has_n()) request.n = message.n();
  if (message.has_seed()) request.seed = message.seed();
  request.quality = message.quality();
  if (message.has_num_inference_steps()) generation.steps = message.num_inference_steps();
  if (message.has_guidance_scale()) generation.guidance_scale = message.guidance_scale();
  if (message.has_true_cfg_scale()) generation.true_cfg_scale = message.true_cfg_scale();
  generation.sampler = message.sampler();
  request.output_format = message.output_format();
  if (message.has_output_compression()) request.output_compression = message.output_compression();
  request.background = message.background();
  request.style = message.style();
  request.user = message.user();
  if (message.has_partial_images()) request.partial_images = message.partial_images();
  if (message.has_priority()) request.priority = message.priority();
  if (message.has_deadline_ms()) request.deadline_ms = message.deadline_ms();
  generation.prompt_2 = message.prompt_2();
  generation.prompt_3 = message.prompt_3();
  generation.negative_prompt_2 = message.negative_prompt_2();
  generation.negative_prompt_3 = message.negative_prompt_3();
  if (message.has_guidance_rescale()) generation.guidance_rescale = message.guidance_rescale();
  if (message.has_clip_skip()) generation.clip_skip = message.clip_skip();
  generation.skip_layers.assign(message.skip_layers().begin(), message.skip_layers().end());
  if (message.has_skip_layer_scale()) generation.skip_layer_scale = message.skip_layer_scale();
  if (message.has_skip_layer_start()) generation.skip_layer_start = message.skip_layer_start();
  if (message.has_skip_layer_stop()) generation.skip_layer_stop = message.skip_layer_stop();
  if (message.has_original_width()) generation.original_width = message.original_width();
  if (message.has_original_height()) generation.original_height = message.original_height();
  if (message.has_crop_top()) generation.crop_top = message.crop_top();
  if (message.has_crop_left()) generation.crop_left = message.crop_left();
  if (message.has_clean_caption()) generation.clean_caption = message.clean_caption();
  if (message.has_resolution_binning()) generation.resolution_binning = message.resolution_binning();
  if (message.has_max_sequence_length()) generation.max_sequence_length = message.max_sequence_length();
  if (!message.noise().empty()) generation.noise = message.noise();
  return request;
}

absl::StatusOr<ListOptions> FromProto(const v1::ListJobsRequest& message) {
  ListOptions options;
  if (message.limit() != 0) options.limit = message.limit();
  if (options.limit < 1 || options.limit > kMaxListLimit) {
    return FieldError("limit", absl::StrCat(" is ", message.limit(), "; legal is 1 to ", kMaxListLimit));
  }
  options.after = message.after();
  if (message.state() == v1::JOB_STATE_UNSPECIFIED) return options;
  for (const JobState state :
       {JobState::kQueued, JobState::kRunning, JobState::kDone, JobState::kFailed, JobState::kCancelled}) {
    if (StateToProto(state) == message.state()) options.state = state;
  }
  if (options.state.has_value()) return options;
  return FieldError("state", absl::StrCat(" is ", static_cast<int>(message.state()), "; legal is 0 to 5"));
}

v1::Image ToProto(const FinishedImage& image) {
  v1::Image message;
  message.set_id(image.id);
  message.set_index(image.index);
  message.set_seed(image.seed);
  message.set_width(image.width);
  message.set_height(image.height);
  message.set_output_format(OutputFormatName(image.format));
  message.set_file_bytes(image.bytes);
  return message;
}

v1::Job ToProto(const Job& job) {
  v1::Job message;
  const JobRequest& request = job.request;
  const JobParameters& parameters = request.parameters;
  message.set_id(job.id);
  message.set_state(StateToProto(job.state));
  message.set_model(request.model);
  message.set_created_ms(absl::ToUnixMillis(job.created));
  if (job.started) message.set_started_ms(absl::ToUnixMillis(*job.started));
  if (job.ended) message.set_ended_ms(absl::ToUnixMillis(*job.ended));
  if (job.expires) message.set_expires_ms(absl::ToUnixMillis(*job.expires));
  if (job.queue_position) message.set_queue_position(*job.queue_position);
  if (job.expected_wait) message.set_expected_wait_ms(absl::ToInt64Milliseconds(*job.expected_wait));
  message.set_steps_done(job.steps_done);
  message.set_steps_total(job.steps_total);
  message.set_prompt(parameters.prompt);
  if (parameters.negative_prompt) message.set_negative_prompt(*parameters.negative_prompt);
  message.set_n(request.count);
  message.set_width(parameters.width);
  message.set_height(parameters.height);
  message.set_seed(parameters.seed);
  message.set_num_inference_steps(parameters.steps);
  message.set_guidance_scale(parameters.guidance_scale);
  message.set_sampler(parameters.sampler);
  message.set_output_format(OutputFormatName(request.output.format));
  message.set_priority(request.priority);
  message.set_user(request.user);
  message.set_layout(job.layout);
  message.set_lossless(job.lossless);
  message.mutable_warnings()->Add(job.warnings.begin(), job.warnings.end());
  for (const FinishedImage& image : job.images) *message.add_images() = ToProto(image);
  if (job.state == JobState::kFailed) {
    const absl::Status error = ErrorOfFailedJob(job.error);
    message.mutable_error()->set_code(static_cast<int>(error.code()));
    message.mutable_error()->set_message(std::string(error.message()));
  }
  return message;
}

v1::JobEvent ToProto(const JobEvent& event) {
  struct Spell {
    v1::JobEvent message;

    void operator()(const QueuedEvent& queued) {
      message.mutable_queued()->set_position(queued.position);
      if (queued.expected_wait) {
        message.mutable_queued()->set_expected_wait_ms(absl::ToInt64Milliseconds(*queued.expected_wait));
      }
    }
    void operator()(const StartedEvent&) { message.mutable_started(); }
    void operator()(const StepEvent& step) {
      message.mutable_step()->set_image(step.image);
      message.mutable_step()->set_step(step.step);
      message.mutable_step()->set_steps(step.steps);
    }
    void operator()(const PreviewEvent& preview) {
      v1::JobEvent::Preview& spelt = *message.mutable_preview();
      spelt.set_image(preview.image);
      spelt.set_preview(preview.preview);
      spelt.set_width(preview.width);
      spelt.set_height(preview.height);
      spelt.set_output_format(OutputFormatName(preview.format));
      spelt.set_file(*preview.bytes);
    }
    void operator()(const ImageEvent& image) { *message.mutable_image() = ToProto(image.image); }
    void operator()(const EndedEvent& ended) { *message.mutable_ended() = ToProto(ended.job); }
    void operator()(const LetGoEvent&) {}  // the status of the call says it
  };
  Spell spell;
  std::visit(spell, event);
  return spell.message;
}

v1::Model ToProto(const ServedModel& model) {
  v1::Model message;
  const ModelDescription& description = model.description;
  message.set_id(model.id);
  message.mutable_aliases()->Add(model.aliases.begin(), model.aliases.end());
  message.set_ready(model.ready);
  message.set_pipeline(description.pipeline);
  message.set_digest(description.digest);
  message.set_size_multiple(description.size_multiple);
  message.set_min_size(description.min_size);
  message.set_max_size(description.max_size);
  message.set_default_width(description.default_width);
  message.set_default_height(description.default_height);
  message.set_default_num_inference_steps(description.default_steps);
  message.set_max_num_inference_steps(description.max_steps);
  message.set_default_guidance_scale(description.default_guidance_scale);
  message.set_default_sampler(description.default_sampler);
  message.mutable_samplers()->Add(description.samplers.begin(), description.samplers.end());
  message.mutable_options()->Add(description.options.begin(), description.options.end());
  return message;
}

v1::ServerInfo ToProto(const ServerInfo& info) {
  v1::ServerInfo message;
  message.set_version(info.version);
  message.set_started_ms(absl::ToUnixMillis(info.started));
  message.set_queued_jobs(info.queued_jobs);
  message.set_running_jobs(info.running_jobs);
  message.set_queued_device_seconds(info.queued_device_seconds);
  message.set_oldest_wait_ms(absl::ToInt64Milliseconds(info.oldest_wait));
  message.set_draining(info.draining);
  for (const GroupInfo& group : info.groups) {
    v1::Group& spelt = *message.add_groups();
    spelt.set_name(group.name);
    spelt.set_model(group.model);
    spelt.set_layout(group.layout);
    spelt.set_dtype(group.dtype);
    spelt.mutable_devices()->Add(group.devices.begin(), group.devices.end());
    spelt.set_state(group.state);
    spelt.set_reason(group.reason);
    spelt.set_certificate(group.certificate);
    spelt.set_restarts(group.restarts);
  }
  return message;
}

}  // namespace tessera

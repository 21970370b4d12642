#include "server/api/proto_values.h"

#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "control/model/model_description.h"
#include "control/parameters/message_fields.h"
#include "control/pictures/picture_input.h"
#include "server/api/field_checks.h"
#include "server/api/job_request.h"
#include "server/api/request_fields.h"
#include "server/api/service_error.h"

namespace tessera::server {
namespace {

using google::protobuf::FieldDescriptor;

// Each state's number in the message is one higher than in JobState.
static_assert(static_cast<int>(JobState::kCancelled) + 1 == v1::JOB_STATE_CANCELLED);
v1::JobState StateToProto(JobState state) { return static_cast<v1::JobState>(static_cast<int>(state) + 1); }

// Returns null for a field that only HTTP has, for OpenAI's clients.
const FieldDescriptor* DescriptorOf(const RequestFacts& facts) {
  return facts.half ? nullptr : v1::ImageRequest::descriptor()->FindFieldByName(ApiName(facts));
}

}  // namespace

ImageRequest FromProto(const v1::ImageRequest& message) {
  ImageRequest request;
  const control::MessageReader reader(message);
  base::ForEachField(
      [&](const auto& field, auto& value) {
        const FieldDescriptor* from = DescriptorOf(field.facts);
        if (from == nullptr) return;
        if (from->is_repeated() || reader.Has(from)) reader.Get(from, value);  // an empty text means absent
      },
      request);
  return request;
}

v1::ImageRequest ToProto(const ImageRequest& request) {
  v1::ImageRequest message;
  const control::MessageWriter writer(message);
  base::ForEachField(
      [&](const auto& field, const auto& value) {
        if (const FieldDescriptor* to = DescriptorOf(field.facts); to != nullptr) writer.Put(to, value);
      },
      request);
  return message;
}

absl::StatusOr<ListOptions> FromProto(const v1::ListJobsRequest& message) {
  ListOptions options;
  if (message.limit() != 0) options.limit = message.limit();
  if (options.limit < 1 || options.limit > kMaxListLimit) {
    return FieldError("limit", absl::StrCat(" is ", message.limit(), "; valid values are 1 to ", kMaxListLimit));
  }
  options.after = message.after();
  if (!v1::JobState_IsValid(message.state())) {
    return FieldError("state", absl::StrCat(" is ", static_cast<int>(message.state()), "; valid values are 0 to 5"));
  }
  if (message.state() != v1::JOB_STATE_UNSPECIFIED) options.state = static_cast<JobState>(message.state() - 1);
  return options;
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
  const JobRequest& request = *job.request;
  const control::JobParameters& parameters = request.parameters;
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
  control::MessageWriter(message).Put(v1::Job::descriptor()->FindFieldByName("loras"), parameters.adapters);
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
    void operator()(const ReleasedEvent&) {}  // the call's status reports it
  };
  Spell spell;
  std::visit(spell, event);
  return spell.message;
}

v1::Model ToProto(const ServedModel& model) {
  v1::Model message;
  const control::ModelDescription& description = *model.description;
  message.set_id(model.id);
  message.mutable_aliases()->Add(model.aliases.begin(), model.aliases.end());
  message.set_ready(model.progress.is_ready());
  message.set_state(std::string(GroupStateName(model.progress.state)));
  message.set_loaded(model.progress.loaded);
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
  message.set_picture_input(std::string(base::EnumName(description.pictures.use)));
  message.set_max_pictures(description.pictures.most);
  message.set_takes_mask(description.pictures.mask != control::MaskRule::kNone);
  message.set_default_strength(description.pictures.usual_strength);
  return message;
}

v1::Model ToProto(const ServedModel& model, const ServedAdapter& adapter) {
  v1::Model message = ToProto(model);
  message.set_id(adapter.name);
  message.clear_aliases();
  message.set_parent(model.id);
  message.set_adapter_digest(adapter.digest);
  message.set_adapter_step(adapter.step);
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
  message.set_images_done(info.images_done);
  message.set_images_failed(info.images_failed);
  for (const GroupInfo& group : info.groups) {
    v1::Group& spelt = *message.add_groups();
    spelt.set_name(group.name);
    spelt.set_model(group.model);
    spelt.set_layout(group.layout);
    spelt.set_dtype(group.dtype);
    spelt.mutable_devices()->Add(group.devices.begin(), group.devices.end());
    spelt.set_state(std::string(GroupStateName(group.state)));
    spelt.set_reason(group.reason);
    spelt.set_certificate(group.certificate);
    spelt.set_restarts(group.restarts);
    spelt.set_loaded(group.loaded);
  }
  for (const NodeInfo& node : info.nodes) {
    v1::Node& spelt = *message.add_nodes();
    spelt.set_name(node.name);
    spelt.set_state(std::string(NodeStateName(node.state)));
    spelt.mutable_devices()->Add(node.devices.begin(), node.devices.end());
    spelt.set_epoch(static_cast<int64_t>(node.epoch));
    spelt.set_changed_ms(absl::ToUnixMillis(node.changed));
  }
  return message;
}

}  // namespace tessera::server

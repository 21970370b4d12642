#include "server/http/job_json.h"

#include <boost/json.hpp>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/plain_json.h"

namespace tessera {
namespace {

using boost::json::array;
using boost::json::object;
using boost::json::value;

template <typename T>
value OrNull(const std::optional<T>& optional) {
  return optional.has_value() ? value(*optional) : value();
}

value TimeOrNull(const std::optional<absl::Time>& time) {
  return time.has_value() ? value(absl::ToUnixSeconds(*time)) : value();
}

value SecondsOrNull(const std::optional<absl::Duration>& duration) {
  return duration.has_value() ? value(absl::ToDoubleSeconds(*duration)) : value();
}

std::string SizeText(int32_t width, int32_t height) { return absl::StrCat(width, "x", height); }

array Texts(const std::vector<std::string>& texts) {
  array all;
  for (const std::string& text : texts) all.push_back(value(text));
  return all;
}

object ImageObject(const FinishedImage& image, const std::string& base_url) {
  return {{"index", image.index},
          {"id", image.id},
          {"url", ImageUrl(base_url, image.id)},
          {"seed", image.seed},
          {"size", SizeText(image.width, image.height)},
          {"output_format", OutputFormatName(image.format)},
          {"bytes", image.bytes}};
}

object JobObject(const Job& job, const std::string& base_url) {
  const JobRequest& request = job.request;
  const JobParameters& parameters = request.parameters;
  array images;
  for (const FinishedImage& image : job.images) images.push_back(ImageObject(image, base_url));
  object result = {
      {"id", job.id},
      {"object", "image.job"},
      {"status", JobStateName(job.state)},
      {"model", request.model},
      {"created_at", absl::ToUnixSeconds(job.created)},
      {"started_at", TimeOrNull(job.started)},
      {"ended_at", TimeOrNull(job.ended)},
      {"expires_at", TimeOrNull(job.expires)},
      {"queue_position", OrNull(job.queue_position)},
      {"expected_wait_seconds", SecondsOrNull(job.expected_wait)},
      {"steps_done", job.steps_done},
      {"steps_total", job.steps_total},
      {"prompt", parameters.prompt},
      {"negative_prompt", OrNull(parameters.negative_prompt)},
      {"n", request.count},
      {"size", SizeText(parameters.width, parameters.height)},
      {"seed", parameters.seed},
      {"num_inference_steps", parameters.steps},
      {"guidance_scale", parameters.guidance_scale},
      {"sampler", parameters.sampler.empty() ? value() : value(parameters.sampler)},
      {"output_format", OutputFormatName(request.output.format)},
      {"priority", request.priority},
      {"user", request.user.empty() ? value() : value(request.user)},
      {"layout", job.layout.empty() ? value() : value(job.layout)},
      {"lossless", job.lossless},
      {"warnings", Texts(job.warnings)},
      {"images", std::move(images)},
      {"error", nullptr},
  };
  if (job.state == JobState::kFailed) result["error"] = boost::json::parse(ErrorJson(HttpErrorOfFailedJob(job.error)));
  return result;
}

object ModelObject(const ServedModel& model, absl::string_view name) {
  const ModelDescription& description = model.description;
  return {{"id", std::string(name)},
          {"object", "model"},
          {"created", absl::ToUnixSeconds(model.added)},
          {"owned_by", "tessera"},
          {"ready", model.ready},
          {"alias_of", name == model.id ? value() : value(model.id)},
          {"aliases", Texts(model.aliases)},
          {"pipeline", description.pipeline},
          {"digest", description.digest},
          {"size_multiple", description.size_multiple},
          {"min_size", description.min_size},
          {"max_size", description.max_size},
          {"default_size", SizeText(description.default_width, description.default_height)},
          {"default_num_inference_steps", description.default_steps},
          {"max_num_inference_steps", description.max_steps},
          {"default_guidance_scale", description.default_guidance_scale},
          {"default_sampler", description.default_sampler},
          {"samplers", Texts(description.samplers)},
          {"options", Texts(description.options)}};
}

// What every answer to a generation says, as it was decided.
void AddAnswer(object& result, const AnswerContext& context) {
  const Job& job = context.job;
  const std::string& quality = context.body.request.quality;
  result["background"] = "opaque";
  result["output_format"] = OutputFormatName(job.request.output.format);
  result["size"] = SizeText(job.request.parameters.width, job.request.parameters.height);
  result["quality"] = quality.empty() ? "auto" : quality;
  result["job"] = job.id;
  result["model"] = job.request.model;
  if (!job.request.user.empty()) result["safety_identifier"] = job.request.user;
}

void AddPicture(object& result, const AnswerContext& context, const FinishedImage& image, const std::string& file) {
  if (context.body.response_format == ResponseFormat::kUrl) {
    result["url"] = ImageUrl(context.base_url, image.id);
  } else {
    result["b64_json"] = absl::Base64Escape(file);
  }
  result["seed"] = image.seed;
}

}  // namespace

std::string ImageUrl(const std::string& base_url, const std::string& image) {
  return absl::StrCat(base_url, "/v1/images/", image);
}

std::string JobJson(const Job& job, const std::string& base_url) { return PlainJson(JobObject(job, base_url)); }

std::string JobPageJson(const JobPage& page, const std::string& base_url) {
  array jobs;
  for (const Job& job : page.jobs) jobs.push_back(JobObject(job, base_url));
  return PlainJson(object{{"object", "list"},
                          {"data", std::move(jobs)},
                          {"has_more", !page.next.empty()},
                          {"next", page.next.empty() ? value() : value(page.next)}});
}

std::string ModelJson(const ServedModel& model, absl::string_view name) { return PlainJson(ModelObject(model, name)); }

std::string ModelListJson(const std::vector<ServedModel>& models) {
  array all;
  for (const ServedModel& model : models) {
    all.push_back(ModelObject(model, model.id));
    for (const std::string& alias : model.aliases) all.push_back(ModelObject(model, alias));
  }
  return PlainJson(object{{"object", "list"}, {"data", std::move(all)}});
}

std::string ServerInfoJson(const ServerInfo& info) {
  array groups;
  for (const GroupInfo& group : info.groups) {
    groups.push_back(object{{"name", group.name},
                            {"model", group.model},
                            {"layout", group.layout},
                            {"dtype", group.dtype},
                            {"devices", Texts(group.devices)},
                            {"state", std::string(GroupStateName(group.state))},
                            {"reason", group.reason.empty() ? value() : value(group.reason)},
                            {"certificate", group.certificate},
                            {"restarts", group.restarts}});
  }
  return PlainJson(object{{"version", info.version},
                          {"started_at", absl::ToUnixSeconds(info.started)},
                          {"queued_jobs", info.queued_jobs},
                          {"running_jobs", info.running_jobs},
                          {"queued_device_seconds", info.queued_device_seconds},
                          {"oldest_wait_seconds", absl::ToDoubleSeconds(info.oldest_wait)},
                          {"draining", info.draining},
                          {"groups", std::move(groups)}});
}

std::string GenerationJson(const AnswerContext& context, const Job& done, const std::vector<std::string>& files) {
  array data;
  for (size_t i = 0; i < done.images.size(); ++i) {
    object image;
    AddPicture(image, context, done.images[i], i < files.size() ? files[i] : std::string());
    data.push_back(std::move(image));
  }
  object result = {{"created", absl::ToUnixSeconds(done.created)}, {"data", std::move(data)}};
  AddAnswer(result, context);
  result["lossless"] = done.lossless;
  result["warnings"] = Texts(done.warnings);
  return PlainJson(result);
}

std::string ServerSentEvent(absl::string_view name, absl::string_view data) {
  return absl::StrCat("event: ", name, "\ndata: ", data, "\n\n");
}

std::string PartialImageJson(const AnswerContext& context, const PreviewEvent& preview) {
  object result = {{"type", "image_generation.partial_image"},
                   {"b64_json", absl::Base64Escape(*preview.bytes)},
                   {"partial_image_index", preview.preview},
                   {"image_index", preview.image},
                   {"created_at", absl::ToUnixSeconds(context.job.created)}};
  AddAnswer(result, context);
  // A preview may be smaller than the image.
  result["size"] = SizeText(preview.width, preview.height);
  result["output_format"] = OutputFormatName(preview.format);
  return PlainJson(result);
}

std::string CompletedJson(const AnswerContext& context, const FinishedImage& image, const std::string& file) {
  object result = {{"type", "image_generation.completed"},
                   {"image_index", image.index},
                   {"created_at", absl::ToUnixSeconds(context.job.created)}};
  AddPicture(result, context, image, file);
  AddAnswer(result, context);
  // Clients' types ask for it; nothing here is paid by the token.
  result["usage"] = object{{"total_tokens", 0},
                           {"input_tokens", 0},
                           {"output_tokens", 0},
                           {"input_tokens_details", object{{"image_tokens", 0}, {"text_tokens", 0}}}};
  return PlainJson(result);
}

std::string ErrorEvent(const HttpError& error) {
  return ServerSentEvent("error", absl::StrCat(R"({"type":"error","error":)", ErrorJson(error), "}"));
}

std::string JobEventText(const JobEvent& event, const std::string& base_url) {
  struct Spell {
    const std::string& base_url;

    std::string operator()(const QueuedEvent& queued) const {
      return ServerSentEvent("queued",
                             PlainJson(object{{"queue_position", queued.position},
                                              {"expected_wait_seconds", SecondsOrNull(queued.expected_wait)}}));
    }
    std::string operator()(const StartedEvent&) const { return ServerSentEvent("started", "{}"); }
    std::string operator()(const StepEvent& step) const {
      return ServerSentEvent(
          "step", PlainJson(object{{"image_index", step.image}, {"step", step.step}, {"steps", step.steps}}));
    }
    std::string operator()(const PreviewEvent& preview) const {
      return ServerSentEvent("preview", PlainJson(object{{"image_index", preview.image},
                                                         {"partial_image_index", preview.preview},
                                                         {"size", SizeText(preview.width, preview.height)},
                                                         {"output_format", OutputFormatName(preview.format)},
                                                         {"b64_json", absl::Base64Escape(*preview.bytes)}}));
    }
    std::string operator()(const ImageEvent& image) const {
      return ServerSentEvent("image", PlainJson(ImageObject(image.image, base_url)));
    }
    std::string operator()(const EndedEvent& ended) const {
      return ServerSentEvent(JobStateName(ended.job.state), JobJson(ended.job, base_url));
    }
    std::string operator()(const LetGoEvent& let_go) const { return ErrorEvent(HttpErrorOf(let_go.reason)); }
  };
  return std::visit(Spell{base_url}, event);
}

}  // namespace tessera

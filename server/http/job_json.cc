#include "server/http/job_json.h"

#include <boost/json.hpp>
#include <set>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json/plain_json.h"
#include "server/api/job_request.h"
#include "server/api/proto_values.h"

namespace tessera::server {
namespace {

using boost::json::array;
using boost::json::object;
using boost::json::value;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string SizeText(int32_t width, int32_t height) { return absl::StrCat(width, "x", height); }

array Texts(const std::vector<std::string>& texts) { return array(texts.begin(), texts.end()); }

object ObjectOf(const Message& message);

// Converts a field that is not a list. Times become whole seconds, waits seconds.
value ValueOf(const Message& message, const FieldDescriptor* field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field->has_presence() && !reflection.HasField(message, field)) return nullptr;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64: {
      const int64_t number = reflection.GetInt64(message, field);
      if (absl::EndsWith(field->name(), "_wait_ms")) return static_cast<double>(number) / 1000;
      return absl::EndsWith(field->name(), "_ms") ? number / 1000 : number;
    }
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return value(JobStateName(static_cast<JobState>(reflection.GetEnumValue(message, field) - 1)));
    case FieldDescriptor::CPPTYPE_STRING: {
      static const auto* null_if_empty =
          new std::set<std::string>{"adapter_digest", "layout", "next", "parent", "reason", "sampler", "user"};
      std::string text = reflection.GetString(message, field);
      if (field->type() == FieldDescriptor::TYPE_BYTES) return value(absl::Base64Escape(text));
      return text.empty() && null_if_empty->contains(field->name()) ? value() : value(text);
    }
    default:
      return ObjectOf(reflection.GetMessage(message, field));
  }
}

array ListOf(const Message& message, const FieldDescriptor* field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  array list;
  for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
    if (field->message_type() != nullptr) {
      list.push_back(ObjectOf(reflection.GetRepeatedMessage(message, field, i)));
    } else {
      list.push_back(value(reflection.GetRepeatedString(message, field, i)));
    }
  }
  return list;
}

// Converts the fields of an API message under their JSON names. Adjacent width and height become one text.
object ObjectOf(const Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  object result;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    absl::string_view name = field->has_json_name() ? field->json_name() : field->name();
    if (absl::ConsumeSuffix(&name, "width")) {
      const FieldDescriptor* height = message.GetDescriptor()->field(++i);
      result[absl::StrCat(name, "size")] =
          SizeText(reflection.GetInt32(message, field), reflection.GetInt32(message, height));
    } else if (field->type() != FieldDescriptor::TYPE_BYTES || reflection.HasField(message, field)) {
      result[std::string(name)] = field->is_repeated() ? value(ListOf(message, field)) : ValueOf(message, field);
    }
  }
  return result;
}

void AddLink(object& image, const std::string& base_url) {
  image["url"] = ImageUrl(base_url, std::string(image["id"].as_string()));
}

object JobObject(const Job& job, const std::string& base_url) {
  object result = ObjectOf(ToProto(job));
  result["object"] = "image.job";
  for (value& image : result["images"].as_array()) AddLink(image.as_object(), base_url);
  if (job.state == JobState::kFailed) result["error"] = boost::json::parse(ErrorJson(HttpErrorOfFailedJob(job.error)));
  return result;
}

object ModelObject(const ServedModel& model, absl::string_view name) {
  object result = ObjectOf(ToProto(model));
  result["id"] = std::string(name);
  result["object"] = "model";
  result["created"] = absl::ToUnixSeconds(model.added);
  result["owned_by"] = "tessera";
  result["alias_of"] = name == model.id ? value() : value(model.id);
  return result;
}

object AdapterObject(const ServedModel& model, const ServedAdapter& adapter) {
  object result = ModelObject(model, model.id);
  const object own = ObjectOf(ToProto(model, adapter));
  for (const auto& member : own) result[member.key()] = member.value();
  result["created"] = absl::ToUnixSeconds(adapter.added);
  return result;
}

// Adds the values that every answer to a generation reports, as they were chosen.
void AddAnswer(object& result, const AnswerContext& context) {
  const Job& job = context.job;
  const std::string& quality = context.body.request.quality;
  result["background"] = "opaque";
  result["output_format"] = OutputFormatName(job.request->output.format);
  result["size"] = SizeText(job.request->parameters.width, job.request->parameters.height);
  result["quality"] = quality.empty() ? "auto" : quality;
  result["job"] = job.id;
  result["model"] = job.request->model;
  if (!job.request->user.empty()) result["safety_identifier"] = job.request->user;
}

// Placeholder for the bytes of a file in a JSON text; it never occurs in UTF-8.
constexpr char kFileMark = '\xFF';

// Replaces the placeholders by the files in Base64, in order.
base::SharedBytes WithFiles(const std::string& json, const std::vector<base::SharedBytes>& files) {
  std::vector<base::SharedBytes> parts;
  for (const absl::string_view text : absl::StrSplit(json, kFileMark)) {
    if (!parts.empty()) parts.push_back(base::InBase64(files[parts.size() / 2]));
    parts.push_back(base::BytesOf(std::string(text)));
  }
  return base::Joined(std::move(parts));
}

void AddPicture(object& result, const AnswerContext& context, const FinishedImage& image) {
  if (context.body.response_format == ResponseFormat::kUrl) {
    result["url"] = ImageUrl(context.base_url, image.id);
  } else {
    result["b64_json"] = std::string(1, kFileMark);
  }
  result["seed"] = image.seed;
}

}  // namespace

std::string ImageUrl(const std::string& base_url, const std::string& image) {
  return absl::StrCat(base_url, "/v1/images/", image);
}

std::string JobJson(const Job& job, const std::string& base_url) { return base::PlainJson(JobObject(job, base_url)); }

std::string JobPageJson(const JobPage& page, const std::string& base_url) {
  array jobs;
  for (const Job& job : page.jobs) jobs.push_back(JobObject(job, base_url));
  return base::PlainJson(object{{"object", "list"},
                                {"data", std::move(jobs)},
                                {"has_more", !page.next.empty()},
                                {"next", page.next.empty() ? value() : value(page.next)}});
}

std::string ModelJson(const ServedModel& model, absl::string_view name) {
  return base::PlainJson(ModelObject(model, name));
}

std::string AdapterJson(const ServedModel& model, const ServedAdapter& adapter) {
  return base::PlainJson(AdapterObject(model, adapter));
}

std::string ModelListJson(const std::vector<ServedModel>& models) {
  array all;
  for (const ServedModel& model : models) {
    all.push_back(ModelObject(model, model.id));
    for (const std::string& alias : model.aliases) all.push_back(ModelObject(model, alias));
    for (const ServedAdapter& adapter : model.adapters) all.push_back(AdapterObject(model, adapter));
  }
  return base::PlainJson(object{{"object", "list"}, {"data", std::move(all)}});
}

std::string ServerInfoJson(const ServerInfo& info) { return base::PlainJson(ObjectOf(ToProto(info))); }

base::SharedBytes GenerationJson(const AnswerContext& context, const Job& done,
                                 const std::vector<base::SharedBytes>& files) {
  array data;
  for (const FinishedImage& finished : done.images) {
    object image;
    AddPicture(image, context, finished);
    data.push_back(std::move(image));
  }
  object result = {{"created", absl::ToUnixSeconds(done.created)}, {"data", std::move(data)}};
  AddAnswer(result, context);
  result["lossless"] = done.lossless;
  result["warnings"] = Texts(done.warnings);
  return WithFiles(base::PlainJson(result), files);
}

std::string ServerSentEvent(absl::string_view name, absl::string_view data) {
  return absl::StrCat("event: ", name, "\ndata: ", data, "\n\n");
}

base::SharedBytes ServerSentEvent(absl::string_view name, base::SharedBytes data) {
  return base::Joined(
      {base::BytesOf(absl::StrCat("event: ", name, "\ndata: ")), std::move(data), base::BytesOf("\n\n")});
}

std::string PartialImageJson(const AnswerContext& context, const PreviewEvent& preview) {
  object result = {{"type", absl::StrCat(context.events, ".partial_image")},
                   {"b64_json", absl::Base64Escape(*preview.bytes)},
                   {"partial_image_index", preview.preview},
                   {"image_index", preview.image},
                   {"created_at", absl::ToUnixSeconds(context.job.created)}};
  AddAnswer(result, context);
  // A preview may be smaller than the image.
  result["size"] = SizeText(preview.width, preview.height);
  result["output_format"] = OutputFormatName(preview.format);
  return base::PlainJson(result);
}

base::SharedBytes CompletedJson(const AnswerContext& context, const FinishedImage& image,
                                const base::SharedBytes& file) {
  object result = {{"type", absl::StrCat(context.events, ".completed")},
                   {"image_index", image.index},
                   {"created_at", absl::ToUnixSeconds(context.job.created)}};
  AddPicture(result, context, image);
  AddAnswer(result, context);
  // Clients' types require it, but this server does not count tokens.
  result["usage"] = object{{"total_tokens", 0},
                           {"input_tokens", 0},
                           {"output_tokens", 0},
                           {"input_tokens_details", object{{"image_tokens", 0}, {"text_tokens", 0}}}};
  return WithFiles(base::PlainJson(result), {file});
}

std::string ErrorEvent(const HttpError& error) {
  return ServerSentEvent("error", absl::StrCat(R"({"type":"error","error":)", ErrorJson(error), "}"));
}

std::string JobEventText(const JobEvent& event, const std::string& base_url) {
  if (const auto* released = std::get_if<ReleasedEvent>(&event)) return ErrorEvent(HttpErrorOf(released->reason));
  if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    return ServerSentEvent(JobStateName(ended->job.state), JobJson(ended->job, base_url));
  }
  const v1::JobEvent message = ToProto(event);
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const FieldDescriptor* kind =
      reflection.GetOneofFieldDescriptor(message, v1::JobEvent::descriptor()->FindOneofByName("event"));
  object result = ObjectOf(reflection.GetMessage(message, kind));
  if (message.has_image()) AddLink(result, base_url);
  return ServerSentEvent(kind->name(), base::PlainJson(result));
}

}  // namespace tessera::server

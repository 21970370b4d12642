// Jobs, images and models as the JSON of HTTP answers, and server-sent events.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/image_service.h"
#include "server/http/error_response.h"
#include "server/http/image_request_json.h"

namespace tessera::server {

// `base_url` stands before links: "http://localhost:8080". All texts are one JSON value without line breaks.
std::string JobJson(const Job& job, const std::string& base_url);
std::string JobPageJson(const JobPage& page, const std::string& base_url);
std::string ModelJson(const ServedModel& model, absl::string_view name);
std::string AdapterJson(const ServedModel& model, const ServedAdapter& adapter);  // of the model
std::string ModelListJson(const std::vector<ServedModel>& models);
std::string ServerInfoJson(const ServerInfo& info);

// "http://localhost:8080/v1/images/img_…"
std::string ImageUrl(const std::string& base_url, const std::string& image);

// What every answer about an image of a generation repeats of its request.
struct AnswerContext {
  GenerationBody body;
  Job job;
  std::string base_url;
};

// The answer to a generation that is done, which reads the files while it is sent. `files`, by index, are asked for
// where the response format is b64_json.
base::SharedBytes GenerationJson(const AnswerContext& context, const Job& done,
                                 const std::vector<base::SharedBytes>& files);

// One event of a stream: name and data. `data` is one line.
std::string ServerSentEvent(absl::string_view name, absl::string_view data);
base::SharedBytes ServerSentEvent(absl::string_view name, base::SharedBytes data);

// The last event of a stream that fails.
std::string ErrorEvent(const HttpError& error);

std::string PartialImageJson(const AnswerContext& context, const PreviewEvent& preview);
// `file` as for GenerationJson; null where only the link is asked for.
base::SharedBytes CompletedJson(const AnswerContext& context, const FinishedImage& image,
                                const base::SharedBytes& file);

// An event of a watched job, whole, with its name.
std::string JobEventText(const JobEvent& event, const std::string& base_url);

}  // namespace tessera::server

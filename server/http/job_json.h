// Converts jobs, images and models to the JSON of HTTP answers and to server-sent events.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/job.h"
#include "server/api/served_model.h"
#include "server/api/server_info.h"
#include "server/http/error_response.h"
#include "server/http/image_request_json.h"

namespace tessera::server {

// `base_url` is the prefix of links: "http://localhost:8080". Each text is one JSON value without line breaks.
std::string JobJson(const Job& job, const std::string& base_url);
std::string JobPageJson(const JobPage& page, const std::string& base_url);
std::string ModelJson(const ServedModel& model, absl::string_view name);
std::string AdapterJson(const ServedModel& model, const ServedAdapter& adapter);  // one of the model's adapters
std::string ModelListJson(const std::vector<ServedModel>& models);
std::string ServerInfoJson(const ServerInfo& info);

// Returns a text like "http://localhost:8080/v1/images/img_…".
std::string ImageUrl(const std::string& base_url, const std::string& image);

// Data of the request that every answer about a generation's image repeats.
struct AnswerContext {
  GenerationBody body;
  const char* events = "image_generation";  // how the names of a stream's events begin
  Job job;
  std::string base_url;
};

// Returns the answer to a finished generation, which reads the files while it is sent. `files`, by index, are needed
// for the response format b64_json.
base::SharedBytes GenerationJson(const AnswerContext& context, const Job& done,
                                 const std::vector<base::SharedBytes>& files);

// Returns one event of a stream from its name and data. `data` is one line.
std::string ServerSentEvent(absl::string_view name, absl::string_view data);
base::SharedBytes ServerSentEvent(absl::string_view name, base::SharedBytes data);

// Returns the last event of a stream that fails.
std::string ErrorEvent(const HttpError& error);

std::string PartialImageJson(const AnswerContext& context, const PreviewEvent& preview);
// `file` as for GenerationJson; null if only the link is requested.
base::SharedBytes CompletedJson(const AnswerContext& context, const FinishedImage& image,
                                const base::SharedBytes& file);

// Returns an event of a watched job with its name.
std::string JobEventText(const JobEvent& event, const std::string& base_url);

}  // namespace tessera::server

#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files/path_state.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "client/cli/command.h"
#include "client/cli/file_bytes.h"
#include "client/cli/models/model_location.h"
#include "client/cli/models/weights_report.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/prompt_options_json.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/model_options.h"
#include "control/model/model_description.h"
#include "server/api/unused_parameters.h"
#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"

namespace tessera::client {
namespace {

namespace json = boost::json;

struct InspectOptions {
  std::string target;
  ModelOptions model;
  bool json = false;
};

json::value JsonTextOrNull(const std::optional<std::string>& text) {
  return text.has_value() ? json::value(JsonText(*text)) : json::value(nullptr);
}

json::value JsonNumberOrNull(const std::optional<double>& number) {
  return number.has_value() ? json::value(*number) : json::value(nullptr);
}

json::array JsonTexts(const std::vector<std::string>& texts) {
  json::array array;
  for (const std::string& text : texts) array.push_back(JsonText(text));
  return array;
}

void PrintModelJson(const std::string& path, const control::ModelDescription& model) {
  json::array components;
  for (const control::ModelComponent& part : model.components) {
    components.push_back(json::object{{"name", part.name},
                                      {"class", part.class_name},
                                      {"parameters", part.parameters},
                                      {"bytes", part.bytes},
                                      {"dtype", part.dtype},
                                      {"files", JsonTexts(part.files)}});
  }
  PrintJsonLine({{"event", "model"},
                 {"path", JsonText(path)},
                 {"pipeline", model.pipeline},
                 {"family", model.family},
                 {"digest", model.digest},
                 {"components", std::move(components)},
                 {"size_multiple", model.size_multiple},
                 {"min_size", model.min_size},
                 {"max_size", model.max_size},
                 {"default_width", model.default_width},
                 {"default_height", model.default_height},
                 {"default_steps", model.default_steps},
                 {"max_steps", model.max_steps},
                 {"default_guidance", model.default_guidance_scale},
                 {"base_model", model.base_model},
                 {"can_bin", model.can_bin},
                 {"default_binning", model.default_resolution_binning},
                 {"default_clean_caption", model.default_clean_caption},
                 {"default_max_sequence_length", model.default_max_sequence_length},
                 {"max_sequence_length", model.max_sequence_length},
                 {"options", JsonTexts(model.options)},
                 {"default_sampler", model.default_sampler},
                 {"samplers", JsonTexts(model.samplers)},
                 {"heads", model.heads},
                 {"blocks", model.blocks},
                 {"warnings", JsonTexts(model.warnings)}});
}

std::string SizeRule(const control::ModelDescription& model) {
  if (model.min_size == model.max_size) return absl::StrCat("is only ", model.min_size);
  return absl::StrCat("are multiples of ", model.size_multiple, " from ", model.min_size, " to ", model.max_size);
}

void PrintModel(const std::string& path, const control::ModelDescription& model) {
  std::printf("model       %s\npipeline    %s (family %s)\ndigest      %s\n", path.c_str(), model.pipeline.c_str(),
              model.family.c_str(), model.digest.c_str());
  std::printf("transformer %d blocks, %d heads\n\n", model.blocks, model.heads);
  uint64_t parameters = 0, bytes = 0;
  for (const control::ModelComponent& part : model.components) {
    if (part.dtype.empty()) {  // without weights: a tokenizer
      std::printf("  %-16s %-32s read from %s\n", part.name.c_str(), part.class_name.c_str(),
                  absl::StrJoin(part.files, ", ").c_str());
      continue;
    }
    std::printf("  %-16s %-32s %14lu parameters  %-5s %s\n", part.name.c_str(), part.class_name.c_str(),
                part.parameters, part.dtype.c_str(), base::ByteText(part.bytes).c_str());
    parameters += part.parameters;
    bytes += part.bytes;
  }
  std::printf("  %-16s %-32s %14lu parameters  %-5s %s\n\n", "total", "", parameters, "",
              base::ByteText(bytes).c_str());
  std::printf("size        %dx%d; valid %s\n", model.default_width, model.default_height, SizeRule(model).c_str());
  std::printf("steps       %d; valid values are 1 to %d\n", model.default_steps, model.max_steps);
  if (server::TakesGuidance(model)) {
    std::printf("guidance    %g\n", model.default_guidance_scale);
  } else {
    std::puts("guidance    none: this model takes no guidance scale");
  }
  if (model.is_distilled()) std::printf("distilled   train %s in its place\n", model.base_model.c_str());
  std::printf("sampler     %s; valid values are %s\n", model.default_sampler.c_str(),
              absl::StrJoin(model.samplers, ", ").c_str());
  if (model.max_sequence_length > 0) {
    std::printf("prompt      %d tokens, at most %d, caption cleaning %s\n", model.default_max_sequence_length,
                model.max_sequence_length, model.default_clean_caption ? "on" : "off");
  }
  std::printf("options     %s\n", model.options.empty() ? "none" : absl::StrJoin(model.options, ", ").c_str());
  std::printf("binning     %s\n", !model.can_bin ? "not possible" : model.default_resolution_binning ? "on" : "off");
  for (const std::string& warning : model.warnings) std::printf("warning     %s\n", warning.c_str());
}

absl::Status InspectImage(const InspectOptions& options) {
  ASSIGN_OR_RETURN(std::string bytes, ReadFileBytes(options.target));
  absl::StatusOr<server::DecodedImage> image = server::DecodeImage(bytes);
  if (!image.ok()) {
    return absl::Status(image.status().code(),
                        absl::StrCat("'", options.target, "': ", std::string(image.status().message())));
  }
  const std::string format(server::ImageFormatName(image->format));
  if (!options.json) {
    std::printf("image       %s\nformat      %s\nsize        %dx%d\nfile        %zu bytes\n", options.target.c_str(),
                format.c_str(), image->image.width, image->image.height, bytes.size());
    std::printf("parameters  %s\n", image->parameters.empty() ? "none" : "");
    if (!image->parameters.empty()) std::printf("%s\n", image->parameters.c_str());
    return absl::OkStatus();
  }
  json::object object = {{"event", "image"},
                         {"path", JsonText(options.target)},
                         {"format", format},
                         {"width", image->image.width},
                         {"height", image->image.height},
                         {"bytes", bytes.size()},
                         {"text", JsonText(image->parameters)}};
  if (const absl::StatusOr<server::ImageParameters> parsed = server::ParseParameters(image->parameters); parsed.ok()) {
    object["parameters"] = json::object{{"prompt", JsonText(parsed->prompt)},
                                        {"negative_prompt", JsonTextOrNull(parsed->negative_prompt)},
                                        {"steps", parsed->steps},
                                        {"sampler", JsonText(parsed->sampler)},
                                        {"guidance", JsonNumberOrNull(parsed->guidance_scale)},
                                        {"seed", parsed->seed},
                                        {"width", parsed->width},
                                        {"height", parsed->height},
                                        {"model", JsonText(parsed->model)},
                                        {"model_digest", JsonText(parsed->model_digest)},
                                        {"weights_digest", JsonText(parsed->weights_digest)},
                                        {"noise", JsonText(parsed->noise)},
                                        {"dtype", JsonText(parsed->dtype)},
                                        {"device", JsonText(parsed->device)},
                                        {"layout", JsonText(parsed->layout)},
                                        {"instruction_set", JsonText(parsed->instruction_set)},
                                        {"text_encoders", JsonText(parsed->text_encoders)},
                                        {"autoencoder", JsonText(parsed->autoencoder)},
                                        {"options", PromptOptionsJson(parsed->options)},
                                        {"loras", AdaptersJson(parsed->adapters)},
                                        {"version", JsonText(parsed->version)}};
  }
  PrintJsonLine(object);
  return absl::OkStatus();
}

absl::Status InspectModel(const InspectOptions& options, Interrupts& interrupts) {
  ASSIGN_OR_RETURN(WorkerSession::Options session_options, SessionOptions(options.model));
  ASSIGN_OR_RETURN(std::string path, FindModel(options.target, options.model.model_folders));
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerSession> session, WorkerSession::Start(session_options, interrupts));
  ASSIGN_OR_RETURN(control::ModelDescription description, session->Describe(path));
  if (options.json) {
    PrintModelJson(path, description);
  } else {
    PrintModel(path, description);
  }
  return session->Close();
}

ExitCode Inspect(const InspectOptions& options, Interrupts& interrupts) {
  const bool is_image = LooksLikeImage(FirstBytes(options.target));
  const absl::Status status = is_image                       ? InspectImage(options)
                              : base::IsFile(options.target) ? ReportWeights(options.target, options.json)
                                                             : InspectModel(options, interrupts);
  if (status.ok()) return ExitCode::kOk;
  const Stage stage = is_image ? Stage::kOptions : Stage::kModel;
  return Finish(MakeReporter({.json = options.json, .quiet = true}), interrupts, At(stage, status));
}

}  // namespace

CommandRun AddInspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  AddText(
      app,
      {"target", "Model folder, name of a known model, file of weights, or image file (default: the embedded model)",
       "MODEL|FILE|IMAGE"},
      options->target);
  AddModelFoldersOption(app, options->model.model_folders);
  AddFlag(app, "--json", "One JSON object", options->json);
  AddWorkerOptions(app, options->model);
  return [options](Interrupts& interrupts) { return Inspect(*options, interrupts); };
}

}  // namespace tessera::client

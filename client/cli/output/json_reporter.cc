#include "client/cli/output/json_reporter.h"

#include <boost/json.hpp>
#include <cstdio>

#include "client/cli/output/json_line.h"
#include "client/cli/output/prompt_options_json.h"
#include "control/parameters/job_parameters.h"

namespace tessera::client {

void JsonReporter::OnLoaded(const LoadedEvent& event) {
  PrintJsonLine({{"event", "loaded"},
                 {"model", JsonText(event.model)},
                 {"pipeline", event.pipeline},
                 {"digest", event.digest},
                 {"dtype", event.dtype},
                 {"device", event.device},
                 {"layout", event.layout},
                 {"certified", event.certified},
                 {"text_encoders", event.text_encoders},
                 {"autoencoder", event.autoencoder},
                 {"seconds", event.loaded.seconds},
                 {"weight_bytes", event.loaded.weight_bytes}});
}

void JsonReporter::OnStarted(int64_t image, const control::JobParameters& job, const control::JobStarted& started) {
  PrintJsonLine({{"event", "started"},
                 {"image", image},
                 {"seed", job.seed},
                 {"steps", started.steps},
                 {"sampler", started.sampler},
                 {"guidance", job.guidance_scale},
                 {"width", started.width},
                 {"height", started.height},
                 {"generated_width", started.generated_width},
                 {"generated_height", started.generated_height},
                 {"prompt_tokens", started.prompt_tokens},
                 {"text_seconds", started.seconds},
                 {"cached", started.cached},
                 {"options", PromptOptionsJson(job.options)}});
  for (const std::string& warning : started.warnings) OnWarning(warning);
}

void JsonReporter::OnStep(int64_t image, int32_t steps, const control::Stepped& stepped) {
  PrintJsonLine({{"event", "step"},
                 {"image", image},
                 {"step", stepped.completed},
                 {"steps", steps},
                 {"seconds", stepped.seconds}});
}

void JsonReporter::OnPreview(int64_t image, int32_t step, const std::string& path) {
  PrintJsonLine({{"event", "preview"}, {"image", image}, {"step", step}, {"path", JsonText(path)}});
}

void JsonReporter::OnImage(const PictureEvent& event) {
  PrintJsonLine({{"event", "image"},
                 {"image", event.image},
                 {"seed", event.seed},
                 {"width", event.width},
                 {"height", event.height},
                 {"path", JsonText(event.path)},
                 {"lossless", event.lossless},
                 {"bytes", event.bytes},
                 {"seconds", event.seconds},
                 {"decode_seconds", event.decode_seconds}});
}

void JsonReporter::OnActivity(const std::string& text) {
  PrintJsonLine({{"event", "activity"}, {"text", JsonText(text)}});
}

void JsonReporter::OnWarning(const std::string& message) {
  PrintJsonLine({{"event", "warning"}, {"message", JsonText(message)}});
}

void JsonReporter::OnDone(int64_t images, double seconds, uint64_t peak_memory_bytes) {
  PrintJsonLine(
      {{"event", "done"}, {"images", images}, {"seconds", seconds}, {"peak_memory_bytes", peak_memory_bytes}});
}

void JsonReporter::OnError(const absl::Status& status, ExitCode code) {
  const std::string message(status.message());
  PrintJsonLine({{"event", "error"}, {"message", JsonText(message)}, {"exit_code", static_cast<int>(code)}});
  std::fprintf(stderr, "tessera: %s\n", message.c_str());
}

}  // namespace tessera::client

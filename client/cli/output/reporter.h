// Reporter shows a command's progress to its user: as lines and a progress bar for people, or as JSON lines for
// programs. docs/command-line.md documents the JSON events and their fields.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/exit_code.h"
#include "client/cli/interrupts.h"
#include "control/parameters/loaded.h"
#include "control/protocol/job_replies.h"

namespace tessera::control {
struct JobParameters;
struct PromptOptions;
}  // namespace tessera::control

namespace tessera::client {

struct LoadedEvent {
  std::string model;  // folder
  std::string pipeline;
  std::string digest;
  std::string dtype;
  std::string device;
  std::string layout;
  bool certified = true;      // the layout's images are proven equal to those of one rank
  std::string text_encoders;  // their placement
  std::string autoencoder;    // its placement
  control::Loaded loaded;
};

struct PictureEvent {
  int64_t image = 0;  // 0, 1, …
  uint64_t seed = 0;
  int32_t steps = 0;
  int32_t width = 0;
  int32_t height = 0;
  std::string path;
  bool lossless = true;  // the layout used no stale activations: every other such layout gives the same image
  size_t bytes = 0;
  bool cached = false;                              // the encoded prompts were in the cache
  const control::PromptOptions* options = nullptr;  // of its job; null if a server made it
  double seconds = 0;                               // from the image's start until its file is written
  double decode_seconds = 0;
};

// Used by one thread. Each method writes its output immediately.
class Reporter {
 public:
  virtual ~Reporter() = default;

  virtual void OnLoaded(const LoadedEvent& event) = 0;
  virtual void OnStarted(int64_t image, const control::JobParameters& job, const control::JobStarted& started) = 0;
  virtual void OnStep(int64_t image, int32_t steps, const control::Stepped& stepped) = 0;
  virtual void OnPreview(int64_t image, int32_t step, const std::string& path) = 0;
  virtual void OnImage(const PictureEvent& event) = 0;
  virtual void OnWarning(const std::string& message) = 0;
  virtual void OnActivity(const std::string& text) = 0;  // the current activity before the first image
  virtual void OnDone(int64_t images, double seconds, uint64_t peak_memory_bytes) = 0;
  virtual void OnError(const absl::Status& status, ExitCode code) = 0;
};

struct ReporterOptions {
  bool json = false;
  bool quiet = false;                       // for people: only the names of the images, and errors
  int64_t images = 1;                       // number of images to generate
  std::function<void(std::string)> errors;  // receives error lines for people; null: standard error
};

std::unique_ptr<Reporter> MakeReporter(const ReporterOptions& options);

// Returns the exit code of a command with this result. Reports an error; after an interruption, every error is reported
// as the interruption.
ExitCode Finish(const std::unique_ptr<Reporter>& reporter, const Interrupts& interrupts,
                const absl::StatusOr<ExitCode>& result);

}  // namespace tessera::client

// What a command tells its user while it works: lines and a progress bar for people, or JSON lines for programs.
// docs/command-line.md documents the JSON events and their fields.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/exit_code.h"
#include "client/cli/session/interrupts.h"
#include "control/commands.h"

namespace tessera::client {

struct LoadedEvent {
  std::string model;  // folder
  std::string pipeline;
  std::string digest;
  std::string dtype;
  std::string device;
  std::string layout;
  bool certified = true;      // the layout's images are proven to be those of one rank
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
  bool lossless = true;  // the layout had no stale steps: on any other one the image would be the same
  size_t bytes = 0;
  bool cached = false;  // the prompts had been encoded before
  control::PromptOptions options;
  double seconds = 0;  // from the start of the image to its file
  double decode_seconds = 0;
};

// Used by one thread. A method writes all at once; nothing is kept for later.
class Reporter {
 public:
  virtual ~Reporter() = default;

  virtual void OnLoaded(const LoadedEvent& event) = 0;
  virtual void OnStarted(int64_t image, const control::JobParameters& job, const control::JobStarted& started) = 0;
  virtual void OnStep(int64_t image, int32_t steps, const control::Stepped& stepped) = 0;
  virtual void OnPreview(int64_t image, int32_t step, const std::string& path) = 0;
  virtual void OnImage(const PictureEvent& event) = 0;
  virtual void OnWarning(const std::string& message) = 0;
  virtual void OnActivity(const std::string& text) = 0;  // what is under way before there is any image
  virtual void OnDone(int64_t images, double seconds, uint64_t peak_memory_bytes) = 0;
  virtual void OnError(const absl::Status& status, ExitCode code) = 0;
};

struct ReporterOptions {
  bool json = false;
  bool quiet = false;                       // for people: nothing but the names of the images, and errors
  int64_t images = 1;                       // that are to be made
  std::function<void(std::string)> errors;  // takes the line of an error for people; null: standard error
};

std::unique_ptr<Reporter> MakeReporter(const ReporterOptions& options);

// The exit code of a command that came to `result`. An error is reported; an interruption explains every other one.
ExitCode Finish(const std::unique_ptr<Reporter>& reporter, const Interrupts& interrupts,
                const absl::StatusOr<ExitCode>& result);

}  // namespace tessera::client

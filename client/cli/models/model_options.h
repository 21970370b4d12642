// Defines the options shared by the commands that run a model, and converts them to worker sessions and placements.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/cli/session/worker_session.h"
#include "control/load_parameters.h"
#include "server/workers/layout_choice.h"

namespace tessera::client {

// As typed; empty if not typed.
struct ModelOptions {
  std::string model;
  std::string model_folders;
  std::string dtype;
  std::string device;
  std::string threads;
  std::string text_encoders;
  std::string autoencoder;
  std::string prompt_cache;
  bool stream_blocks = false;
  std::string offload;
  std::string layout;
  std::string ranks;
  std::string certify;
  std::string command_timeout;
  bool verbose = false;
};

void AddModelOption(CLI::App& app, ModelOptions& options);
void AddModelFoldersOption(CLI::App& app, std::string& folders);
void AddDeviceOptions(CLI::App& app, ModelOptions& options);
void AddPlacementOptions(CLI::App& app, ModelOptions& options);  // includes those of AddDeviceOptions
void AddLayoutOptions(CLI::App& app, ModelOptions& options);
void AddCertifyOption(CLI::App& app, ModelOptions& options);
void AddWorkerOptions(CLI::App& app, ModelOptions& options);

// Returns the first typed option that controls how this machine generates an image; empty if none was typed.
std::string LocalOption(const ModelOptions& options);

// Returns the placement of the model at `path`, after all checks that need no worker.
absl::StatusOr<control::LoadParameters> Placement(const ModelOptions& options, const std::string& path);

// Returns the options of a session with one worker, which can describe any model.
absl::StatusOr<WorkerSession::Options> SessionOptions(const ModelOptions& options);

// InvalidArgument for a layout that no model can have.
absl::StatusOr<server::LayoutRequest> RequestedLayout(const ModelOptions& options);

}  // namespace tessera::client

// The options of every command that runs a model, and how such a command comes to its worker.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/cli/session/worker_session.h"
#include "control/load_parameters.h"
#include "server/workers/layout_choice.h"

namespace tessera::client {

// As typed; empty where it was not.
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
void AddPlacementOptions(CLI::App& app, ModelOptions& options);  // those of the device among them
void AddLayoutOptions(CLI::App& app, ModelOptions& options);
void AddCertifyOption(CLI::App& app, ModelOptions& options);
void AddWorkerOptions(CLI::App& app, ModelOptions& options);

// Of the options that say how this machine makes an image, the first that was typed; empty: none.
std::string LocalOption(const ModelOptions& options);

// Where the model at `path` is to run, after all checks that need no worker.
absl::StatusOr<control::LoadParameters> Placement(const ModelOptions& options, const std::string& path);

// The options of a session with one worker, which can describe any model.
absl::StatusOr<WorkerSession::Options> SessionOptions(const ModelOptions& options);

// InvalidArgument for what is no layout of any model.
absl::StatusOr<server::LayoutRequest> RequestedLayout(const ModelOptions& options);

}  // namespace tessera::client

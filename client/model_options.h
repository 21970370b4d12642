// The options of every command that runs a model, and how such a command comes to its worker.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/command_line.h"
#include "client/worker_session.h"
#include "runtime/commands.h"

namespace tessera {

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
  std::string command_timeout;
  bool verbose = false;
};

void AddModelOption(CLI::App& app, ModelOptions& options);
void AddModelFoldersOption(CLI::App& app, std::string& folders);
void AddPlacementOptions(CLI::App& app, ModelOptions& options);
void AddWorkerOptions(CLI::App& app, ModelOptions& options);

// Where the model at `path` is to run, after all checks that need no worker.
absl::StatusOr<LoadParameters> Placement(const ModelOptions& options, const std::string& path);

absl::StatusOr<WorkerSession::Options> SessionOptions(const ModelOptions& options);

}  // namespace tessera

// Defines the options shared by the commands that run a model, and converts them to worker sessions and placements.
#pragma once

#include <array>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "base/fields/fields.h"
#include "client/cli/command_line.h"
#include "client/cli/session/worker_session.h"
#include "control/parameters/component_files.h"
#include "control/parameters/placement.h"
#include "server/workers/layout_choice.h"

namespace tessera::client {

// As typed; empty if not typed.
struct ModelOptions {
  struct Typed {
    std::string text;
    bool flag = false;
  };

  // What was typed for a field of control::Placement that is not a flag.
  template <class Value>
  const std::string& text(Value control::Placement::*member) const {
    size_t index = 0, found = 0;
    base::ForEachFieldOf<control::Placement>([&](const auto& field) {
      if constexpr (std::is_same_v<decltype(field.member), Value control::Placement::*>) {
        if (field.member == member) found = index;
      }
      ++index;
    });
    return placement[found].text;
  }
  template <class Value>
  std::string& text(Value control::Placement::*member) {
    return const_cast<std::string&>(std::as_const(*this).text(member));
  }

  std::string model;
  control::ComponentFiles files;
  std::string model_folders;
  std::string dtype;
  std::string device;
  std::array<Typed, std::tuple_size_v<decltype(base::Fields<control::Placement>())>> placement;  // by field
  std::string prompt_cache;
  std::string layout;
  std::string ranks;
  std::string certify;
  std::string command_timeout;
  bool verbose = false;
};

void AddModelOption(CLI::App& app, ModelOptions& options);
void AddComponentOptions(CLI::App& app, control::ComponentFiles& files);
void AddModelFoldersOption(CLI::App& app, std::string& folders);
void AddDeviceOptions(CLI::App& app, ModelOptions& options);
void AddPlacementOptions(CLI::App& app, ModelOptions& options);  // includes those of AddDeviceOptions
void AddLayoutOptions(CLI::App& app, ModelOptions& options);
void AddCertifyOption(CLI::App& app, ModelOptions& options);
void AddWorkerOptions(CLI::App& app, ModelOptions& options);

// Returns the option for a field of control::Placement, such as "--autoencoder".
std::string PlacementOption(const std::string& field);

// Returns the first typed option that controls how this machine generates an image; empty if none was typed.
std::string LocalOption(const ModelOptions& options);

// Returns how the model at `path` is loaded, after all checks that need no worker.
absl::StatusOr<control::LoadParameters> RequestedLoad(const ModelOptions& options, const std::string& path);

// Returns the options of a session with one worker, which can describe any model.
absl::StatusOr<WorkerSession::Options> SessionOptions(const ModelOptions& options);

// InvalidArgument for a layout that no model can have.
absl::StatusOr<server::LayoutRequest> RequestedLayout(const ModelOptions& options);

}  // namespace tessera::client

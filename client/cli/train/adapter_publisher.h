// AdapterPublisher makes a running server serve the adapter of a training run: the run's workers replace one file in
// the server's adapter folder, and the server is asked to load it. Jobs that the server accepted earlier keep the
// earlier bytes (docs/adapters.md).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/sdk/http_transport.h"
#include "control/training/config.h"

namespace tessera::client {

struct Publication {
  std::string digest;  // digest of the loaded adapter
  std::string model;   // the server's model that the adapter belongs to
  double seconds = 0;  // from the request until the server uses it, as the server measures it
};

class AdapterPublisher final {
 public:
  // INVALID_ARGUMENT for an invalid server address, folder or file. Does not connect.
  static absl::StatusOr<std::unique_ptr<AdapterPublisher>> Create(const control::TrainPublish& options);

  // The path at which the server finds the adapter.
  const std::string& path() const { return path_; }

  // Asks the server to load the file at that path. UNAVAILABLE if the server does not respond within ten seconds; else
  // the server's error.
  absl::StatusOr<Publication> Load() const;

 private:
  AdapterPublisher(const control::TrainPublish& options, std::unique_ptr<HttpTransport> transport);

  const std::string name_;
  const std::string path_;
  const std::unique_ptr<HttpTransport> transport_;
};

}  // namespace tessera::client

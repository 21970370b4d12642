// Lets a running server serve the adapter of a training run: the run's workers replace one file in the folder that the
// server loads adapters from, and the server is told to load it. What the server had accepted before goes on with the
// bytes of then; docs/adapters.md says how.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/sdk/http_transport.h"
#include "control/training/config.h"

namespace tessera::client {

struct Publication {
  std::string digest;  // of what the server has loaded
  std::string model;   // of the server, that it is an adapter of
  double seconds = 0;  // from the server's hearing of it until requests get it, as the server measures it
};

class AdapterPublisher final {
 public:
  // INVALID_ARGUMENT for a server's address, a folder or a file that is not valid. Connects to nothing.
  static absl::StatusOr<std::unique_ptr<AdapterPublisher>> Create(const control::TrainPublish& options);

  // Where the server finds the adapter.
  const std::string& path() const { return path_; }

  // Has the server load what is there. UNAVAILABLE for a server that does not answer within ten seconds; else its own
  // error.
  absl::StatusOr<Publication> Load() const;

 private:
  AdapterPublisher(const control::TrainPublish& options, std::unique_ptr<HttpTransport> transport);

  const std::string name_;
  const std::string path_;
  const std::unique_ptr<HttpTransport> transport_;
};

}  // namespace tessera::client

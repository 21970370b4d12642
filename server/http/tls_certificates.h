// TlsCertificates holds a certificate chain and its key from PEM files, which are read again when a file changes.
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace boost::asio::ssl {
class context;
}

namespace tessera::server {

class TlsCertificates {
 public:
  struct Files {
    std::string certificate_chain;
    std::string private_key;
  };

  // `report` is called on every reload and every failed one; after a failure the current certificates stay.
  static absl::StatusOr<std::shared_ptr<TlsCertificates>> Load(const Files& files,
                                                               std::function<void(const absl::Status&)> report);
  virtual ~TlsCertificates() = default;

  // Returns the context for a new connection, which keeps it alive. Checks the files for changes first.
  virtual std::shared_ptr<boost::asio::ssl::context> Current() = 0;

  // The validity period of the first certificate of the current chain.
  struct Validity {
    absl::Time begin;
    absl::Time end;
  };
  virtual absl::StatusOr<Validity> CurrentValidity() = 0;
};

}  // namespace tessera::server

// A certificate chain and its key in PEM files, read again when a file changes. Thread-safe.
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

  // `report` hears of every reload and of every failed one, after which the certificates in use stay.
  static absl::StatusOr<std::shared_ptr<TlsCertificates>> Load(const Files& files,
                                                               std::function<void(const absl::Status&)> report);
  virtual ~TlsCertificates() = default;

  // For a new connection, which keeps it alive. Looks at the files first.
  virtual std::shared_ptr<boost::asio::ssl::context> Current() = 0;

  // When the first certificate of the chain in use is valid.
  struct Validity {
    absl::Time begin;
    absl::Time end;
  };
  virtual absl::StatusOr<Validity> CurrentValidity() = 0;
};

}  // namespace tessera::server

// The figures of the service as Prometheus reads them. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/api/image_service.h"

namespace tessera::server {

// Parts of a job's time.
enum class ImageStage { kQueue, kEncode, kStep, kDecode, kImage };

class ServiceMetrics {
 public:
  ServiceMetrics();
  ~ServiceMetrics();

  void Observe(ImageStage stage, absl::Duration time);
  void CountImage(const std::string& outcome);       // done, failed, cancelled, quarantined
  int64_t images(const std::string& outcome) const;  // counted so far
  void CountReject(const std::string& reason);
  void CountCachedPrompt();

  // Complete families; what is true now is taken from `info`.
  std::string Text(const ServerInfo& info) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace tessera::server

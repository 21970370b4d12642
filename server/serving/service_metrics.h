// ServiceMetrics holds the service's figures in Prometheus form. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "server/api/key_usage.h"
#include "server/api/server_info.h"

namespace tessera::server {

// Stages of a job's time.
enum class ImageStage { kQueue, kEncode, kStep, kDecode, kImage };

inline constexpr size_t kMaxNamedKeys = 100;

class ServiceMetrics {
 public:
  ServiceMetrics();
  ~ServiceMetrics();

  void Observe(ImageStage stage, absl::Duration time);
  void CountImage(const std::string& outcome);       // done, failed, cancelled, quarantined
  int64_t images(const std::string& outcome) const;  // number counted so far
  void CountReject(const std::string& reason);
  void CountCachedPrompt();
  // Names the keys of which usage is counted apart, at most kMaxNamedKeys of them; that of all others is counted under
  // "other". Without a call, nothing is counted.
  void NameKeys(const std::set<std::string>& keys);
  void CountUsage(const KeyUsage& usage);

  // Returns complete metric families; current values are taken from `info`.
  std::string Text(const ServerInfo& info) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace tessera::server

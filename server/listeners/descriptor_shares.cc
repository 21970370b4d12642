#include "server/listeners/descriptor_shares.h"

#include <algorithm>

namespace tessera::server {
namespace {

// Descriptors that the server itself opens: a quarter, but never so many that no client could connect.
constexpr int64_t kLeastOwn = 12;
constexpr int64_t kMostOwn = 256;
// Connections of an operator, a scraper and the health checks of an orchestrator.
constexpr int64_t kLeastAdmin = 4;
constexpr int64_t kMostAdmin = 64;
constexpr int64_t kLeastHttp = 6;
constexpr int64_t kMostHttp = 128;
constexpr int64_t kMostNumber = 1 << 30;

}  // namespace

DescriptorShares SharesOf(int64_t most) {
  most = std::min(most, kMostNumber);
  const int64_t own = std::clamp(most / 4, kLeastOwn, kMostOwn);
  const int64_t admin = std::clamp(most / 16, kLeastAdmin, kMostAdmin);
  const int64_t highest = most - 1 - own;
  const int64_t http = highest - admin;
  const int64_t grpc = http - std::clamp(most / 8, kLeastHttp, kMostHttp);
  return {.results = static_cast<int>(grpc / 2),
          .grpc = static_cast<int>(grpc),
          .http = static_cast<int>(http),
          .admin = static_cast<int>(highest),
          .admin_connections = static_cast<int>(admin)};
}

}  // namespace tessera::server

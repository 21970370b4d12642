#include "server/fetch/host_resolver.h"

#include <netdb.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

struct Lookups {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
};

// Guarded by Lookups::mutex.
struct Lookup {
  bool is_done = false;
  std::vector<IpAddress> addresses;
};

std::vector<IpAddress> LookUp(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  std::vector<IpAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const std::optional<IpAddress> address = IpAddressOf(*each->ai_addr);
    if (address.has_value() && std::ranges::find(addresses, *address) == addresses.end()) {
      addresses.push_back(*address);
    }
  }
  freeaddrinfo(found);
  return addresses;
}

}  // namespace

HostResolver SystemResolver() {
  return [lookups = std::make_shared<Lookups>()](const std::string& host,
                                                 absl::Duration deadline) -> absl::StatusOr<std::vector<IpAddress>> {
    const auto lookup = std::make_shared<Lookup>();
    std::unique_lock lock(lookups->mutex);
    if (lookups->running >= kMaxLookups) return absl::UnavailableError("too many names are being looked up");
    ++lookups->running;
    base::StartThread([lookups, lookup, host] {
      std::vector<IpAddress> addresses = LookUp(host);
      const std::lock_guard done(lookups->mutex);
      --lookups->running;
      lookup->addresses = std::move(addresses);
      lookup->is_done = true;
      lookups->changed.notify_all();
    }).detach();
    lookups->changed.wait_for(lock, absl::ToChronoNanoseconds(deadline - base::SteadyNow()),
                              [&] { return lookup->is_done; });
    if (!lookup->is_done) return absl::DeadlineExceededError("the name was not found in time");
    if (lookup->addresses.empty()) return absl::NotFoundError("the name has no address");
    return lookup->addresses;
  };
}

}  // namespace tessera::server

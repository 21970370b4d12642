// EventStream parses server-sent events from the bytes of a stream, which may arrive in pieces of any size.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera::client {

struct ServerEvent {
  std::string name;
  std::string data;
};

class EventStream {
 public:
  // Appends the events that are now complete. RESOURCE_EXHAUSTED for an event larger than any image's.
  absl::Status Take(absl::string_view bytes, std::vector<ServerEvent>& events);

 private:
  void TakeLine(absl::string_view line, std::vector<ServerEvent>& events);

  std::string rest_;  // an incomplete line
  ServerEvent event_;
};

}  // namespace tessera::client

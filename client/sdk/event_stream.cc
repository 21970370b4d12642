#include "client/sdk/event_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera::client {
namespace {

constexpr size_t kMaxEventBytes = 256 << 20;

}  // namespace

absl::Status EventStream::Take(absl::string_view bytes, std::vector<ServerEvent>& events) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const absl::string_view piece = bytes.substr(0, end);
    if (rest_.size() + piece.size() + event_.data.size() > kMaxEventBytes) {
      return absl::ResourceExhaustedError("the server sent an event without end");
    }
    rest_.append(piece.data(), piece.size());
    if (end == absl::string_view::npos) return absl::OkStatus();
    TakeLine(absl::StripSuffix(rest_, "\r"), events);
    rest_.clear();
    bytes.remove_prefix(end + 1);
  }
  return absl::OkStatus();
}

void EventStream::TakeLine(absl::string_view line, std::vector<ServerEvent>& events) {
  if (line.empty()) {
    if (!event_.name.empty() || !event_.data.empty()) events.push_back(std::exchange(event_, {}));
    return;
  }
  const size_t colon = line.find(':');
  const absl::string_view field = line.substr(0, colon);
  absl::string_view value = colon == absl::string_view::npos ? "" : line.substr(colon + 1);
  absl::ConsumePrefix(&value, " ");
  if (field == "event") event_.name = std::string(value);
  if (field == "data") absl::StrAppend(&event_.data, event_.data.empty() ? "" : "\n", value);
}

}  // namespace tessera::client

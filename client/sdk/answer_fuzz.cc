// Parses any bytes as a server's response: as a response of each kind, as a refusal, and as a stream of events in
// pieces.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "client/sdk/event_stream.h"
#include "client/sdk/json_messages.h"

namespace {

// Every response is either a valid message or INTERNAL, and the ids of jobs can be used in a path.
template <typename Message>
void ReadAs(const std::string& json) {
  Message message;
  const absl::Status status = tessera::client::FromJson(json, message);
  if (!status.ok() && status.code() != absl::StatusCode::kInternal) std::abort();
  if constexpr (std::is_same_v<Message, tessera::v1::Job>) {
    if (status.ok() && (message.id().empty() || message.id().find('/') != std::string::npos)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  ReadAs<tessera::v1::Job>(bytes);
  ReadAs<tessera::v1::ListJobsResponse>(bytes);
  ReadAs<tessera::v1::ListModelsResponse>(bytes);
  ReadAs<tessera::v1::ServerInfo>(bytes);
  const absl::StatusOr<std::string> file = tessera::client::FileIdOf(bytes);
  if (file.ok() && (file->empty() || file->find('"') != std::string::npos)) std::abort();
  if (tessera::client::ReadError(429, bytes, bytes).ok()) std::abort();
  tessera::client::EventStream stream;
  std::vector<tessera::client::ServerEvent> events;
  const size_t piece = size > 0 ? 1 + data[size - 1] % 64 : 1;
  for (size_t begin = 0; begin < size; begin += piece) {
    if (!stream.Take(bytes.substr(begin, piece), events).ok()) std::abort();
  }
  for (const tessera::client::ServerEvent& event : events) (void)tessera::client::EventOf(event).status();
  return 0;
}

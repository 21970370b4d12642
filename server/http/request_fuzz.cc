// Fuzz test: any bytes as a connection's requests; every complete one passes through the checks and routes of the API.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/http/api_handler.h"
#include "server/http/http_server.h"
#include "server/http/request_reader.h"
#include "tests/support/test_image_service.h"

namespace {

// Takes the answer and checks that there is one, in order.
class CountingReply final : public tessera::server::HttpReply {
 public:
  void Send(tessera::server::HttpResponse response) override {
    if (response.status < 200 || response.status > 599 || done_) std::abort();
    done_ = true;
    tessera::server::ResponseHead(response, tessera::server::BodyFraming::kLength, true);
  }
  void StartStream(tessera::server::HttpResponse head, Heartbeat heartbeat) override {}
  void Write(std::string part) override {}
  void Write(tessera::base::SharedBytes part) override {}
  void Finish() override { done_ = true; }
  uint64_t pending_bytes() const override { return 0; }
  void OnClosed(std::function<void()> closed) override {}

 private:
  bool done_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Kept between inputs, like in a server; the queue is so short that inputs cannot accumulate.
  static tessera::TestImageService service({.max_queued = 4});
  static tessera::server::CallGate gate(nullptr);
  static tessera::server::ApiHandler handler(service, gate, {});
  const tessera::server::HttpLimits limits = {.header_bytes = 2048, .body_bytes = 4096};
  tessera::server::RequestReader reader(limits);
  std::string input;
  // Bytes arrive in pieces of a size that the first byte gives.
  const size_t piece = size > 0 ? 1 + data[0] : 1;
  for (size_t begin = 1; begin < size; begin += piece) {
    input.append(reinterpret_cast<const char*>(data) + begin, std::min(piece, size - begin));
    while (true) {
      const auto progress = reader.Read(input);
      if (progress == tessera::server::RequestReader::Progress::kMore) break;
      if (progress == tessera::server::RequestReader::Progress::kLarge) {
        // Every second body may be larger.
        const std::optional<size_t> bytes = reader.AllowLarge(size % 2 == 0 ? 0 : 2 * limits.body_bytes);
        if (bytes.has_value() && *bytes > 2 * limits.body_bytes) std::abort();
        if (!bytes.has_value()) return 0;
        reader.ReserveLarge();
        continue;
      }
      if (progress == tessera::server::RequestReader::Progress::kRefused) {
        if (reader.refusal_status() < 400 || reader.refusal_reason().empty()) std::abort();
        return 0;
      }
      handler.Handle(reader.TakeRequest(), std::make_shared<CountingReply>());
      reader.Reset();
    }
    if (input.size() > limits.header_bytes + piece) std::abort();
  }
  return 0;
}

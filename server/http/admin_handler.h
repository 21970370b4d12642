// The admin listener: /livez, /readyz, /metrics, which tell, without a key, and what a key can be asked for: /probe,
// which makes the devices work, and /v1/load_lora_adapter and /v1/unload_lora_adapter, which change what requests may
// name. It belongs on loopback or in a private network.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/api/image_service.h"
#include "server/calls/call_gate.h"
#include "server/calls/call_record.h"
#include "server/http/call_checks.h"
#include "server/http/http_message.h"

namespace tessera::server {

// Who may call what makes the devices work, or changes what is served.
enum class AdminAccess : uint8_t {
  kEveryone,  // whom the listener's address lets in
  kKeys,      // who has a key of the gate
  kNobody,    // the listener is reached from beyond this machine, and there are no keys
};

class AdminHandler final : public HttpHandler {
 public:
  struct Options {
    HostRules hosts;
    std::function<std::string()> metrics;  // null: the service's own
    CallRecorder record;
    AdminAccess access = AdminAccess::kEveryone;
    CallGate* gate = nullptr;  // for kKeys
  };

  // `service` and the gate must outlive the handler.
  AdminHandler(ImageService& service, Options options);

  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  bool AnswersAtOnce(const HttpRequest& request) const override;
  HttpResponse Refusal(int status, const std::string& reason, const std::string& peer) override;

 private:
  HttpResponse Answer(const HttpRequest& request, CallRecord& record);
  // POST /v1/load_lora_adapter and /v1/unload_lora_adapter.
  HttpResponse ChangeAdapter(const HttpRequest& request, CallRecord& record);
  absl::Status CheckAccess(const HttpRequest& request, CallRecord& record) const;

  ImageService& service_;
  const Options options_;
};

}  // namespace tessera::server

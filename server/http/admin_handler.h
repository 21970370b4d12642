// AdminHandler serves the admin listener. /livez, /readyz and /metrics only report and need no key. /probe uses the
// devices, /v1/usage shows what all keys have used, and /v1/load_lora_adapter and /v1/unload_lora_adapter change which
// adapters requests may name; these may require a key. The listener belongs on loopback or in a private network.
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

// Who may call the paths that use the devices or change what is served.
enum class AdminAccess : uint8_t {
  kEveryone,  // every client that the listener's address lets in
  kKeys,      // clients with a key of the gate
  kNone,      // no client: the listener is reachable from other machines, and there are no keys
};

class AdminHandler final : public HttpHandler {
 public:
  struct Options {
    HostRules hosts;
    std::function<std::string()> metrics;  // null: the service's metrics
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
  HttpResponse Usage(const HttpRequest& request, CallRecord& record);
  absl::Status CheckAccess(const HttpRequest& request, CallRecord& record) const;

  ImageService& service_;
  const Options options_;
};

}  // namespace tessera::server

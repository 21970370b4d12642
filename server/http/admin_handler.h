// The admin listener: /livez, /readyz, /metrics, /probe. Without keys: it belongs on loopback or in a private network.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/api/image_service.h"
#include "server/calls/call_record.h"
#include "server/http/call_checks.h"
#include "server/http/http_message.h"

namespace tessera::server {

class AdminHandler final : public HttpHandler {
 public:
  // `service` must outlive the handler; `more_metrics` follow the service's own.
  AdminHandler(ImageService& service, HostRules hosts, std::function<std::string()> more_metrics,
               CallRecorder record = nullptr);

  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  bool AnswersAtOnce(const HttpRequest& request) const override;
  HttpResponse Refusal(int status, const std::string& reason, const std::string& peer) override;

 private:
  HttpResponse Answer(const HttpRequest& request, CallRecord& record);

  ImageService& service_;
  const HostRules hosts_;
  const std::function<std::string()> more_metrics_;
  const CallRecorder record_;
};

}  // namespace tessera::server

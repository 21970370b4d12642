// ApiHandler serves the public API over HTTP: it checks each request (host, origin, route, key, media type) and passes
// it to its route.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/http/api_call.h"

namespace tessera::server {

class ApiHandler final : public HttpHandler {
 public:
  // Both must outlive the handler, and the handler the listeners that use it.
  ApiHandler(ImageService& service, CallGate& gate, ApiOptions options);

  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  bool AnswersAtOnce(const HttpRequest& request) const override;
  std::optional<size_t> MostBodyBytes(const HttpRequest& request) const override;
  HttpResponse Refusal(int status, const std::string& reason, const std::string& peer) override;

  const std::vector<ApiRoute>& routes() const { return routes_; }

 private:
  void Route(ApiCall call);
  absl::StatusOr<Caller> CallerOf(const HttpRequest& request) const;
  void HandleOn(const ApiRoute& route, ApiCall call);

  const ApiOptions options_;
  const std::string base_path_;  // path of public_url
  CallGate& gate_;
  base::TaskPool pool_;  // for work on events of jobs
  const std::vector<ApiRoute> routes_;
  std::once_flag submissions_started_;
  std::unique_ptr<base::TaskPool> submissions_;  // for submissions that wait for other servers; null: none yet
};

}  // namespace tessera::server

// ApiFixture runs the whole HTTP edge over an image service with a fake worker, on a free port of this machine.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/http/api_handler.h"
#include "server/http/http_server.h"
#include "tests/support/http_test_client.h"
#include "tests/support/test_image_service.h"

namespace tessera {

struct ApiFixtureOptions {
  TestServiceOptions service;
  server::HttpServerOptions server;
  server::ApiOptions api;
  std::unique_ptr<server::ApiKeys> keys;
};

class ApiFixture {
 public:
  explicit ApiFixture(ApiFixtureOptions options = {})
      : service_(std::move(options.service)), gate_(std::move(options.keys)), handler_(service_, gate_, options.api) {
    // A limit that a test does not set must not end its connections while this machine stalls.
    const server::HttpLimits usual;
    server::HttpLimits& limits = options.server.limits;
    if (limits.header_time == usual.header_time) limits.header_time = absl::Minutes(5);
    if (limits.body_time == usual.body_time) limits.body_time = absl::Minutes(5);
    if (limits.write_time == usual.write_time) limits.write_time = absl::Minutes(5);
    auto server = server::HttpServer::Start(options.server, handler_);
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }

  uint16_t port() const { return server_ == nullptr ? 0 : server_->port(); }
  TestImageService& service() { return service_; }
  server::ApiHandler& handler() { return handler_; }
  server::HttpServer& server() { return *server_; }
  server::CallGate& gate() { return gate_; }

  TestResponse Call(const std::string& method, const std::string& target, const std::string& body = "",
                    const std::vector<server::HttpHeader>& headers = {}) {
    return HttpTestClient(port()).Call(method, target, body, headers);
  }

 private:
  TestImageService service_;
  server::CallGate gate_;
  server::ApiHandler handler_;
  std::unique_ptr<server::HttpServer> server_;
};

}  // namespace tessera

// The whole edge, HTTP and gRPC, over the fake service, for clients under test: prints the ports as one line of JSON
// and runs until its standard input ends.
//
//   tessera-fake-server [--step-ms N] [--keys FILE] [--port N]
#include <unistd.h>

#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "server/grpc/grpc_server.h"
#include "server/http/admin_handler.h"
#include "server/http/api_handler.h"
#include "server/http/http_server.h"
#include "server/service/call_metrics.h"
#include "server/service/fake_image_service.h"

namespace tessera {
namespace {

int Run(int step_ms, const std::string& keys_file, uint16_t port) {
  std::unique_ptr<ApiKeys> keys;
  if (!keys_file.empty()) {
    auto loaded = ApiKeys::Load(keys_file, nullptr);
    if (!loaded.ok()) {
      std::cerr << loaded.status().message() << "\n";
      return 1;
    }
    keys = *std::move(loaded);
  }
  ServedModel model = FakeModel();
  model.aliases = {"gpt-image-1", "dall-e-3"};
  FakeImageService service({.models = {model}, .step_time = absl::Milliseconds(step_ms)});
  CallGate gate(std::move(keys));
  CallMetrics metrics;
  ApiHandler api(service, gate, {.record = [&](const CallRecord& record) { metrics.Record(record); }});
  AdminHandler admin(service, {}, [&] { return metrics.Text(); });
  auto http_server = HttpServer::Start({.port = port}, api);
  auto admin_server = HttpServer::Start({}, admin);
  auto grpc_server = GrpcServer::Start({}, service, gate);
  for (const absl::Status& status : {http_server.status(), admin_server.status(), grpc_server.status()}) {
    if (status.ok()) continue;
    std::cerr << status.message() << "\n";
    return 1;
  }
  std::cout << "{\"http\":" << (*http_server)->port() << ",\"admin\":" << (*admin_server)->port()
            << ",\"grpc\":" << (*grpc_server)->port() << "}" << std::endl;
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  CLI::App app("The HTTP and gRPC edges over a service without models.");
  int step_ms = 5;
  std::string keys;
  uint16_t port = 0;
  app.add_option("--step-ms", step_ms, "Time of a step");
  app.add_option("--keys", keys, "File of API keys");
  app.add_option("--port", port, "HTTP port (default: any)");
  CLI11_PARSE(app, argc, argv);
  return tessera::Run(step_ms, keys, port);
}

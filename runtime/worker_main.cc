// tessera-worker: one rank. Started by tessera, driven through its socket; says nothing on standard output.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "models/weight_memory.h"
#include "runtime/control_channel.h"
#include "runtime/make_engine.h"

int main(int argc, char** argv) {
  tessera::KeepFreedMemory();

  CLI::App app("The process that holds a model for tessera. It is started by tessera and not meant to be run by hand.");
  tessera::ChannelOptions options;
  double linger = 0;
  app.add_option("--socket", options.socket_path, "Unix socket to listen on; its folder is made")->required();
  app.add_option("--linger", linger, "Seconds to outlive the controller")->check(CLI::Range(0.0, 3600.0));
  CLI11_PARSE(app, argc, argv);
  options.linger = absl::Seconds(linger);

  const std::unique_ptr<tessera::CommandHandler> engine = tessera::MakeEngine();
  const absl::Status served = tessera::ServeControlChannel(*engine, options);
  if (!served.ok()) std::fprintf(stderr, "tessera-worker: %s\n", std::string(served.message()).c_str());
  return served.ok() ? 0 : 1;
}

// The command-line program `tessera`.
#include <signal.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/files/standard_streams.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "control/host/cuda_compat.h"

namespace tessera::client {
namespace {

constexpr Command kCommands[] = {
    {"generate", "Make images from a prompt", AddGenerate},
    {"batch", "Make the images of a file of prompts or requests", AddBatch},
    {"inspect", "Show what a model or an image holds", AddInspect},
    {"replay", "Make an image again from its own parameters and compare the two", AddReplay},
    {"models", "List the models on this machine, and those that can be downloaded", AddModels},
    {"pull", "Download a model", AddPull},
    {"train", "Fine-tune a model on a folder of images", AddTrain},
    {"bench", "Measure how fast a model makes images on this machine", AddBench},
    {"serve", "Serve models over HTTP and gRPC", AddServe},
    {"node", "Lend this host's devices to a server on another one", AddNode},
    {"doctor", "Look for what keeps a server from running well here", AddDoctor},
    {"jobs", "List the jobs of a server", AddJobs},
    {"cancel", "Cancel a job of a server", AddCancel},
    {"keys", "Make an API key for a server", AddKeys},
    {"backup", "Back up the jobs, images and adapters of a server", AddBackup},
    {"restore", "Make a server's data folder from a backup", AddRestore},
    {"usage", "Show what the keys of a server have used", AddUsage},
    {"verify", "Prove that a layout makes the images of one rank", AddVerify},
    {"layouts", "List the layouts of a number of ranks: which are valid and certified, and what they cost", AddLayouts},
    {"plan", "Predict what a model takes on a number of GPUs, and recommend layout and replicas", AddPlan},
    {"completion", "Print what completes commands and options in a shell", AddCompletion},
    {"manual", "Print the manual page of the program or of a command", AddManual},
};

int Run(int argc, char** argv) {
  try {
    Interrupts interrupts;
    return static_cast<int>(RunCommandLine(kCommands, argc, argv, interrupts));
  } catch (const std::bad_alloc&) {
    std::fputs("tessera: out of memory\n", stderr);
    return static_cast<int>(ExitCode::kDevice);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: internal error: %s\n", error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

}  // namespace
}  // namespace tessera::client

int main(int argc, char** argv) {
  tessera::base::OpenStandardStreams();
  // Exceeding the process's file size limit is then an error like a full disk.
  signal(SIGXFSZ, SIG_IGN);
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  tessera::control::UseCudaCompat(tessera::control::ReadNvidiaDriver(), program);
  const int code = tessera::client::Run(argc, argv);
  tessera::base::EndProcess(code, static_cast<int>(tessera::client::ExitCode::kOutput));
}

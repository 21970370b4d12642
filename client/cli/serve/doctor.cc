#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/machine/machine_memory.h"
#include "base/text/byte_text.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/output/json_line.h"
#include "client/cli/serve/deployment_checks.h"
#include "client/cli/serve/process_limits.h"
#include "client/cli/serve/served_group.h"
#include "client/cli/session/model_options.h"
#include "client/cli/session/worker_session.h"
#include "control/host/gpu_driver.h"
#include "control/host/host_topology.h"
#include "control/model/main_memory.h"
#include "control/model/memory_fit.h"
#include "control/parameters/loaded.h"
#include "control/parameters/placement.h"
#include "server/planning/planner.h"
#include "server/verification/certify.h"
#include "server/verification/verification.h"
#include "server/workers/layout_choice.h"
#include "server/workers/worker_process.h"

namespace tessera::client {
namespace {

struct DoctorOptions {
  std::string config;
  std::string model_folders;
  bool json = false;
};

const char* HealthName(Health health) {
  if (health == Health::kOk) return "ok";
  return health == Health::kWarning ? "warning" : "FAILED";
}

class Doctor {
 public:
  Doctor(const DoctorOptions& options, Interrupts& interrupts) : options_(options), interrupts_(interrupts) {}

  ExitCode Run() {
    server::ServerConfig config;
    config.groups = {server::GroupConfig{}};  // the embedded model
    if (!options_.config.empty()) {
      const absl::StatusOr<server::ServerConfig> loaded = server::LoadServerConfig(options_.config);
      if (!loaded.ok()) {
        Report({Health::kFailed, "configuration", std::string(loaded.status().message()), "fix the file"});
        return End();
      }
      config = *loaded;
    }
    Report({.what = "configuration", .found = absl::StrCat(config.groups.size(), " groups, valid")});
    const absl::Time now = absl::Now();
    Report(CheckClock(now));
    Report(CheckDataFolder(config.data_folder));
    bool in_use = false;
    Report(config.store.dsn.empty() ? CheckJobStore(config.data_folder, in_use) : CheckSharedStore(config.store));
    Report(CheckPrivacy(config.data_folder));
    Report(CheckListener("http", config.listen.http, in_use));
    Report(CheckListener("grpc", config.listen.grpc, in_use));
    Report(CheckListener("admin", config.listen.admin, in_use));
    Report(CheckKeysFile("keys file", config.keys_file));
    if (!config.admin_keys_file.empty()) Report(CheckKeysFile("admin keys file", config.admin_keys_file));
    for (const Finding& finding : CheckTlsFiles(config.tls, now)) Report(finding);
    const ProcessNeeds needs = NeedsOf(config);
    Report(CheckOpenFiles(config.limits.connections, needs.files));
    Report(CheckProcesses(in_use ? 0 : needs.tasks, base::ReadTaskLimits()));
    CheckGroups(config, in_use);
    return End();
  }

 private:
  void Report(const Finding& finding) {
    failed_ = failed_ || finding.health == Health::kFailed;
    if (options_.json) {
      PrintJsonLine({{"event", "finding"},
                     {"health", finding.health == Health::kFailed ? "failed" : HealthName(finding.health)},
                     {"what", JsonText(finding.what)},
                     {"found", JsonText(finding.found)},
                     {"advice", JsonText(finding.advice)}});
      return;
    }
    const std::string advice = finding.advice.empty() ? "" : absl::StrCat(" → ", finding.advice);
    std::printf("%-8s %-16s %s%s\n", HealthName(finding.health), finding.what.c_str(), finding.found.c_str(),
                advice.c_str());
    std::fflush(stdout);
  }

  ExitCode End() const { return failed_ ? ExitCode::kUnfit : ExitCode::kOk; }

  void CheckGroups(const server::ServerConfig& config, bool in_use) {
    Report(CheckWorker());
    int64_t threads = 0, bytes = 0;
    bool on_gpus = false;
    std::vector<server::ServedGroupOptions> groups;
    for (const server::GroupConfig& group : config.groups) {
      const absl::StatusOr<server::ServedGroupOptions> served =
          ServedGroupOf(group, options_.model_folders, /*any_model=*/false);
      const std::string what = absl::StrCat("model ", served.ok() ? served->name : group.model);
      if (!served.ok()) {
        Report({Health::kFailed, what, std::string(served.status().message()), "fix the group in the configuration"});
        continue;
      }
      groups.push_back(*served);
      threads += group.placement.threads * group.count;
      const absl::StatusOr<control::ModelDescription> model =
          WorkerSession::DescribeAlone({}, interrupts_, served->load.model, served->load.files);
      if (!model.ok()) {
        Report({Health::kFailed, what, std::string(model.status().message()),
                absl::IsUnavailable(model.status())
                    ? "install the worker program in the folder of tessera, or read its messages"
                    : "complete the model's folder"});
        continue;
      }
      Report(
          {.what = what, .found = absl::StrCat(model->pipeline, ", complete, read by ", server::WorkerExecutable())});
      if (absl::StrContains(served->load.device, "cuda")) {
        if (!on_gpus) CheckGpus();
        on_gpus = true;
        CheckFit(*served, *model);
      } else {
        bytes += group.count * static_cast<int64_t>(server::WeightBytes(*model, served->load.dtype));
      }
      CheckLayout(config, *served, *model);
    }
    if (const absl::Status names = CheckNamesOf(groups); !names.ok()) {
      Report({Health::kFailed, "names of models", std::string(names.message()), "fix the groups in the configuration"});
    }
    control::HostTopology topology = control::ReadHostTopology(*control::MakeGpuDriver());
    if (!on_gpus) topology.problems.clear();  // GPUs that cannot be seen have no requirements
    for (const Finding& finding : CheckTopology(topology)) Report(finding);
    if (on_gpus && topology.has_active_port()) Report(CheckLockedMemory(ReadLockedMemory()));
    Report(CheckThreads(threads));
    // A running server has already allocated its memory.
    Report(CheckMemory(in_use ? 0 : bytes));
  }

  void CheckGpus() {
    Report(CheckCuda(server::WorkerProgram()));
    const control::NvidiaDriver driver = control::ReadNvidiaDriver();
    std::error_code error;
    Report(CheckDriver(driver, control::CudaCompatOf(std::filesystem::read_symlink("/proc/self/exe", error))));
  }

  // Reports what of the model stays on a GPU of this machine, and what a step costs if the rest waits in main memory.
  void CheckFit(const server::ServedGroupOptions& served, const control::ModelDescription& model) {
    const control::Placement& placement = served.load.placement;
    uint64_t bytes = base::ParseByteText(placement.memory_limit).value_or(0);
    if (bytes == 0) {
      const absl::StatusOr<std::vector<control::DriverGpu>> gpus = control::MakeGpuDriver()->Gpus();
      if (!gpus.ok() || gpus->empty()) return;  // reported already
      bytes = std::ranges::min_element(*gpus, {}, &control::DriverGpu::memory_bytes)->memory_bytes;
    }
    if (bytes == 0 || placement.offload != control::Offload::kAuto || model.weights.empty()) return;
    const std::string what = absl::StrCat("memory of ", served.name);
    const absl::StatusOr<std::vector<server::LinkFit>> fits =
        server::FitsOf(model,
                       {.width = model.default_width,
                        .height = model.default_height,
                        .steps = 1,
                        .dtype = served.load.dtype,
                        .text_tokens = {}},
                       placement.weights, {.device = bytes, .main = static_cast<uint64_t>(base::ReadTotalMemory())},
                       /*compute_seconds=*/0);
    if (!fits.ok()) {
      return Report({Health::kFailed, what, std::string(fits.status().message()),
                     "set weights of the group to a smaller storage, or its layout to more ranks"});
    }
    std::string found = absl::StrCat("one rank with ", base::ByteText(bytes), ": ");
    if (fits->front().fit.blocks.empty()) {
      absl::StrAppend(&found, control::FitText(fits->front().fit), "; ", control::MainMemoryText(fits->front().main));
      return Report({.what = what, .found = found});
    }
    control::MemoryFit fit = fits->front().fit;
    fit.transfer_seconds = fit.compute_seconds = 0;
    absl::StrAppend(&found, control::FitText(fit), ", which takes");
    for (const server::LinkFit& at : *fits) {
      absl::StrAppendFormat(&found, " %.2f s at %.0f GB/s%s", at.fit.step_seconds(), at.bytes_per_second / 1e9,
                            &at == &fits->back() ? "" : ",");
    }
    absl::StrAppend(&found, "; ", control::MainMemoryText(fits->front().main));
    Report({.what = what, .found = found});
  }

  // Checks that the layout is valid, that its ranks can be started and share memory, and whether it is certified.
  void CheckLayout(const server::ServerConfig& config, const server::ServedGroupOptions& served,
                   const control::ModelDescription& model) {
    const std::string what = absl::StrCat("layout of ", served.name);
    const absl::StatusOr<parallel::Layout> layout =
        server::ChooseLayout(served.layout, server::LayoutModelOf(model, served.load.dtype), served.load.device);
    if (!layout.ok()) {
      return Report({Health::kFailed, what, std::string(layout.status().message()), "choose a valid layout"});
    }
    const std::string text = parallel::LayoutText(*layout);
    if (layout->ranks() == 1) return Report({.what = what, .found = text});
    const auto session = WorkerSession::Start({.layout = *layout}, interrupts_);
    absl::Status started = session.status();
    if (session.ok()) started = (*session)->Describe(served.load.model, served.load.files).status();
    if (!started.ok()) {
      return Report({Health::kFailed, what, absl::StrCat(text, ": ", std::string(started.message())),
                     "allow shared memory (memfd) and that many processes"});
    }
    server::VerificationRequest request = {.model = model, .load = served.load, .layout = *layout};
    if (server::NeedsIdentity(served.load)) {
      const absl::StatusOr<control::DeviceIdentity> identity =
          (*session)->group().Identify(served.load.device, layout->ranks());
      if (!identity.ok()) {
        return Report(
            {Health::kFailed, what, std::string(identity.status().message()), "set devices to existing devices"});
      }
      request.identity = *identity;
    }
    (*session)->Close().IgnoreError();
    const absl::StatusOr<server::CertificateSubject> subject = server::SubjectOf(request, server::WorkerProgram());
    if (!subject.ok()) {
      return Report({Health::kFailed, what, std::string(subject.status().message()),
                     "give the server permission to read its worker"});
    }
    const absl::StatusOr<server::Certificate> certificate =
        server::CertificateFolder(config.data_folder + "/certificates").Find(*subject);
    if (certificate.ok() && certificate->passed()) return Report({.what = what, .found = text + ", certified"});
    const std::string found =
        absl::StrCat(text, certificate.ok() ? ", which verification has found to be wrong" : ", without a certificate");
    if (config.certify == server::CertifyPolicy::kOff) {
      return Report({Health::kWarning, what, found, "set certify to auto, so that it is verified first"});
    }
    if (config.certify == server::CertifyPolicy::kAuto && !certificate.ok()) {
      return Report({.what = what, .found = found + "; the server verifies it when it starts"});
    }
    Report({Health::kFailed, what, found, "set certify to auto, or choose another layout"});
  }

  const DoctorOptions& options_;
  Interrupts& interrupts_;
  bool failed_ = false;
};

}  // namespace

CommandRun AddDoctor(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  AddText(app, {"-c,--config", "Configuration of the server (default: the embedded model on loopback)", "FILE"},
          options->config);
  AddModelFoldersOption(app, options->model_folders);
  AddFlag(app, "--json", "One JSON object for each line", options->json);
  return [options](Interrupts& interrupts) { return Doctor(*options, interrupts).Run(); };
}

}  // namespace tessera::client

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/machine/machine_memory.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "client/cli/command.h"
#include "client/cli/models/model_location.h"
#include "client/cli/option_text.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "client/cli/planning/host_calibration.h"
#include "client/cli/session/model_options.h"
#include "control/host/driver_memory.h"
#include "control/host/gpu_driver.h"
#include "control/model/main_memory.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/placement.h"
#include "server/api/generation_request.h"
#include "server/api/request_values.h"
#include "server/planning/planner.h"

namespace tessera::client {
namespace {

namespace json = boost::json;

constexpr char kDefaultGpu[] = "H100";
constexpr int64_t kMaxThreads = 4096;

struct PlanOptions {
  ModelOptions model;
  std::string threads;
  std::string gpus, gpu, link, size, steps, slo, text_tokens, memory_limit, main_memory, weights;
  bool approximate = false;
  bool calibrate = false;
  bool json = false;
};

// The model and machine to which the figures apply.
struct PlannedFor {
  std::string path;
  server::PlanRequest request;
  bool of_this_host = false;  // this host's processors with shared memory, or its GPUs
  server::Link link = server::Link::kNvlink;

  const char* link_name() const {
    if (!of_this_host) return base::EnumName(link);
    return request.machine.is_one_host() ? "memory" : "as measured";
  }
};

json::object PlanJson(const server::Plan& plan) {
  return {{"layout", parallel::LayoutText(plan.layout)},
          {"lossless", plan.layout.lossless()},
          {"replicas", plan.replicas},
          {"idle_gpus", plan.idle},
          {"seconds", plan.time.image()},
          {"prompt_seconds", plan.time.prompt},
          {"step_seconds", plan.time.step},
          {"exchange_seconds", plan.time.exchange},
          {"decode_seconds", plan.time.decoding},
          {"images_per_hour", plan.images_per_hour},
          {"step_sent_bytes", plan.step_bytes},
          {"memory_bytes", plan.memory_bytes},
          {"missing_bytes", plan.missing_bytes},
          {"weight_bytes_first_rank", plan.weights.first},
          {"weight_bytes_other_ranks", plan.weights.others},
          {"fits", plan.fits()}};
}

json::object FitJson(const server::LinkFit& at) {
  return {{"link_bytes_per_second", at.bytes_per_second},
          {"step_seconds", at.fit.step_seconds()},
          {"memory_bytes", at.fit.peak_bytes},
          {"waiting_bytes", at.fit.waiting_bytes},
          {"main_memory_bytes", at.main.bytes},
          {"reads_encoders", base::EnumName(at.main.reads)},
          {"waiting_blocks", at.fit.blocks.size()},
          {"blocks", at.fit.num_blocks},
          {"copied_bytes_per_step", at.fit.transfer_bytes}};
}

void PrintJson(const server::Plans& plans, const PlannedFor& about) {
  const server::PlanRequest& request = about.request;
  json::array listed;
  for (const server::Plan& plan : plans.plans) listed.push_back(PlanJson(plan));
  json::object object = {{"event", "plan"},
                         {"model", JsonText(about.path)},
                         {"gpu", request.machine.name},
                         {"gpus", request.devices},
                         {"link", about.link_name()},
                         {"dtype", base::EnumName(request.work.dtype)},
                         {"width", request.work.width},
                         {"height", request.work.height},
                         {"steps", request.work.steps},
                         {"slo_seconds", nullptr},
                         {"recommended", nullptr},
                         {"reason", plans.reason},
                         {"layouts_timed", plans.layouts_timed},
                         {"plans", std::move(listed)},
                         {"one_device", json::array()},
                         {"one_device_lacks", plans.unfit}};
  for (const server::LinkFit& at : plans.fits) object["one_device"].as_array().push_back(FitJson(at));
  if (request.slo.has_value()) object["slo_seconds"] = *request.slo;
  if (plans.recommended.has_value()) object["recommended"] = PlanJson(plans.plans[*plans.recommended]);
  PrintJsonLine(object);
}

std::string Title(const server::Plan& plan) {
  return absl::StrCat(plan.replicas, " x ", parallel::LayoutText(plan.layout));
}

void PrintPlans(const server::Plans& plans, bool fitting) {
  size_t widest = 4;
  for (const server::Plan& plan : plans.plans) widest = std::max(widest, Title(plan).size());
  const int width = static_cast<int>(widest);
  if (fitting) {
    std::printf("\npredicted:\n%-*s  %9s  %11s  %10s  %10s\n", width, "plan", "s/image", "images/hour", "memory",
                "sent/step");
  } else {
    std::printf("\ndo not fit into memory:\n");
  }
  for (const server::Plan& plan : plans.plans) {
    if (plan.fits() != fitting) continue;
    if (!fitting) {
      std::printf("%-*s  needs %s, %s too much\n", width, Title(plan).c_str(),
                  base::ByteText(plan.memory_bytes).c_str(), base::ByteText(plan.missing_bytes).c_str());
      continue;
    }
    std::printf("%-*s  %9.3f  %11.0f  %10s  %10s%s\n", width, Title(plan).c_str(), plan.time.image(),
                plan.images_per_hour, base::ByteText(plan.memory_bytes).c_str(),
                base::ByteText(static_cast<uint64_t>(plan.step_bytes)).c_str(),
                plan.layout.lossless() ? "" : "  (approximate)");
  }
}

// What one rank on one of the devices keeps on it, and its seconds a step by the rate of main memory.
void PrintFits(const server::Plans& plans, const server::PlanRequest& request) {
  if (request.machine.is_one_host()) return;
  const double bytes =
      request.memory_limit.has_value() ? static_cast<double>(*request.memory_limit) : request.machine.memory_bytes;
  std::printf("\none rank on a device of %s: ", base::GibText(bytes).c_str());
  if (plans.fits.empty()) {
    std::printf("%s\n", plans.unfit.c_str());
    return;
  }
  std::printf("%s; %s\n", control::FitText(plans.fits.front().fit).c_str(),
              control::MainMemoryText(plans.fits.front().main).c_str());
  for (const server::LinkFit& at : plans.fits) {
    std::printf("%9.0f GB/s from main memory: %.3f s a step\n", at.bytes_per_second / 1e9, at.fit.step_seconds());
  }
}

void PrintTable(const server::Plans& plans, const PlannedFor& about) {
  const server::PlanRequest& request = about.request;
  std::printf("%s: %dx%d, %d steps, %s on %ld x %s (%s)\n", about.path.c_str(), request.work.width, request.work.height,
              request.work.steps, base::EnumName(request.work.dtype), request.devices, request.machine.name.c_str(),
              about.link_name());
  if (plans.recommended.has_value()) {
    const server::Plan& best = plans.plans[*plans.recommended];
    std::printf("recommended: %s: predicted %.3f s an image, %.0f images an hour\n", Title(best).c_str(),
                best.time.image(), best.images_per_hour);
  } else {
    std::printf("recommended: none\n");
  }
  std::printf("%s\n", plans.reason.c_str());
  if (std::ranges::any_of(plans.plans, &server::Plan::fits)) PrintPlans(plans, /*fitting=*/true);
  if (!std::ranges::all_of(plans.plans, &server::Plan::fits)) PrintPlans(plans, /*fitting=*/false);
  PrintFits(plans, request);
}

absl::StatusOr<server::Link> ParseLink(const std::string& text) {
  if (const std::optional<server::Link> link = base::EnumOf<server::Link>(text); link.has_value()) return *link;
  const std::vector<std::string> names = base::EnumNames<server::Link>();
  return absl::InvalidArgumentError(absl::StrCat("link is ", server::QuotedValue(text), "; valid values are ",
                                                 absl::StrJoin(names, ", "), ", and the nearest is ",
                                                 server::NearestName(text.substr(0, 64), names)));
}

class Planning {
 public:
  Planning(const PlanOptions& options, Interrupts& interrupts)
      : options_(options), interrupts_(interrupts), reporter_(MakeReporter({.json = options.json, .quiet = true})) {}

  ExitCode Run() { return Finish(reporter_, interrupts_, Execute()); }

 private:
  absl::StatusOr<ExitCode> Execute() {
    PlannedFor about;
    RETURN_IF_ERROR(ReadOptions(about));
    ASSIGN_OR_RETURN(server::ImageRequest sized, SizedRequest(options_.size));
    if (!options_.steps.empty()) {
      ASSIGN_OR_RETURN(sized.steps, ParseInteger("steps", options_.steps));
    }
    ASSIGN_OR_RETURN(const WorkerSession::Options session_options, SessionOptions(options_.model));
    ASSIGN_OR_RETURN(about.path, At(Stage::kModel, FindModel(options_.model.model, options_.model.model_folders)));
    ASSIGN_OR_RETURN(about.request.model,
                     At(Stage::kModel, WorkerSession::DescribeAlone(session_options, interrupts_, about.path)));
    ASSIGN_OR_RETURN(const control::JobParameters job, server::Validate(sized, about.request.model));
    about.request.work.width = job.width;
    about.request.work.height = job.height;
    about.request.work.steps = control::ExpectedSteps(job);
    if (about.of_this_host) RETURN_IF_ERROR(Calibrate(about.request));
    ASSIGN_OR_RETURN(const server::Plans plans, At(Stage::kModel, server::MakePlans(about.request)));
    if (options_.json) {
      PrintJson(plans, about);
    } else {
      PrintTable(plans, about);
    }
    return ExitCode::kOk;
  }

  bool on_gpus() const { return !options_.model.device.empty() && options_.model.device != "cpu"; }

  // Returns the GPUs to plan for, by UUID, which does not depend on the numbers in CUDA_VISIBLE_DEVICES.
  absl::StatusOr<std::vector<std::string>> Gpus() const {
    ASSIGN_OR_RETURN(std::vector<control::DriverGpu> found, control::MakeGpuDriver()->Gpus());
    std::vector<std::string> names;
    for (const control::DriverGpu& gpu : found) names.push_back(gpu.uuid);
    if (names.empty()) return absl::UnavailableError("there is no GPU here");
    if (options_.gpus.empty()) return names;
    ASSIGN_OR_RETURN(const int64_t wanted, ParseInteger("gpus", options_.gpus));
    if (wanted < 1 || wanted > std::ssize(names)) {
      return absl::InvalidArgumentError(
          absl::StrCat("gpus is ", wanted, "; valid values here are 1 to ", names.size()));
    }
    names.resize(static_cast<size_t>(wanted));
    return names;
  }

  // Sets the request's machine to this host's processors or GPUs.
  absl::Status Calibrate(server::PlanRequest& request) const {
    const control::ModelDescription& model = request.model;
    HostCalibrationOptions wanted = {.dtype = request.work.dtype,
                                     .width = model.transformer.exchange.width,
                                     .heads = model.heads,
                                     .anew = options_.calibrate};
    if (on_gpus()) {
      ASSIGN_OR_RETURN(wanted.gpus, At(Stage::kModel, Gpus()));
    }
    if (wanted.width < 1 || wanted.heads < 1) {
      return At(Stage::kModel, absl::FailedPreconditionError("the shape of the model's transformer is not known"));
    }
    if (!options_.threads.empty()) {
      ASSIGN_OR_RETURN(const int64_t threads, ParseInteger("threads", options_.threads));
      wanted.threads = static_cast<int32_t>(threads);
    }
    ASSIGN_OR_RETURN(const server::Calibration calibration,
                     At(Stage::kModel, CalibrateHost(wanted, interrupts_, [](const std::string& text) {
                          std::fprintf(stderr, "%s\n", text.c_str());
                        })));
    request.machine = server::MachineOf(calibration, static_cast<double>(base::ReadTotalMemory()));
    if (on_gpus() && !request.main_memory) request.main_memory = static_cast<uint64_t>(base::ReadTotalMemory());
    request.devices = on_gpus() ? std::ssize(wanted.gpus) : request.machine.most_ranks();
    return absl::OkStatus();
  }

  // Refuses options of another kind of plan: `reason` follows the name of the typed option.
  static absl::Status RefuseTyped(absl::Span<const std::pair<const char*, std::string>> options, const char* reason) {
    for (const auto& [name, typed] : options) {
      if (!typed.empty()) return absl::InvalidArgumentError(absl::StrCat(name, reason));
    }
    return absl::OkStatus();
  }

  absl::Status CheckDevice(PlannedFor& about) const {
    const std::string& device = options_.model.device;
    if (!device.empty() && device != "cpu" && device != "cuda") {
      return absl::InvalidArgumentError(
          absl::StrCat("device is ", server::QuotedValue(device),
                       "; valid values are cpu and cuda; use --gpus and --link to plan for GPUs of another machine"));
    }
    about.of_this_host = !device.empty() || options_.calibrate;
    if (on_gpus()) {
      return RefuseTyped({{"--link", options_.link}, {"--gpu", options_.gpu}, {"--threads", options_.threads}},
                         " is not valid with the GPUs of this machine, which are measured");
    }
    if (about.of_this_host) {
      RETURN_IF_ERROR(RefuseTyped({{"--gpus", options_.gpus}, {"--link", options_.link}, {"--gpu", options_.gpu}},
                                  " is for GPUs, and this plan is for this machine's CPU"));
      if (options_.threads.empty()) return absl::OkStatus();
      ASSIGN_OR_RETURN(const int64_t threads, ParseInteger("threads", options_.threads));
      if (threads >= 1 && threads <= kMaxThreads) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("threads is ", threads, "; valid values are 1 to ", kMaxThreads));
    }
    if (!options_.threads.empty()) return absl::InvalidArgumentError("--threads needs --device cpu");
    for (const auto& [name, typed] : {std::pair("--gpus", &options_.gpus), std::pair("--link", &options_.link)}) {
      if (typed->empty()) return absl::InvalidArgumentError(absl::StrCat(name, " is required, or --device cpu"));
    }
    return absl::OkStatus();
  }

  // Reads the options, so that errors in them are reported before a worker is started.
  absl::Status ReadOptions(PlannedFor& about) const {
    server::PlanRequest& request = about.request;
    RETURN_IF_ERROR(CheckDevice(about));
    if (!about.of_this_host) {
      ASSIGN_OR_RETURN(request.devices, ParseInteger("gpus", options_.gpus));
    }
    if (!options_.slo.empty()) {
      ASSIGN_OR_RETURN(request.slo, ParseNumber("slo", options_.slo));
    }
    if (!options_.text_tokens.empty()) {
      ASSIGN_OR_RETURN(request.work.text_tokens, ParseInteger("text-tokens", options_.text_tokens));
    }
    request.approximate = options_.approximate;
    if (!options_.memory_limit.empty()) {
      RETURN_IF_ERROR(base::CheckByteText("memory-limit", options_.memory_limit, control::kDriverBytes));
      ASSIGN_OR_RETURN(request.memory_limit, base::ParseByteText(options_.memory_limit));
    }
    if (!options_.main_memory.empty()) {
      RETURN_IF_ERROR(base::CheckByteText("main-memory", options_.main_memory, control::kProgramBytes));
      ASSIGN_OR_RETURN(request.main_memory, base::ParseByteText(options_.main_memory));
    }
    if (!options_.weights.empty()) {
      RETURN_IF_ERROR(server::CheckName("weights", options_.weights, base::EnumNames<control::WeightStorage>()));
      request.weights = *base::EnumOf<control::WeightStorage>(options_.weights);
    }
    request.work.dtype = about.of_this_host && !on_gpus() ? control::Dtype::kFp32 : control::Dtype::kBf16;
    if (!options_.model.dtype.empty()) {
      const std::optional<control::Dtype> dtype = base::EnumOf<control::Dtype>(options_.model.dtype);
      if (!dtype.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("dtype is ", server::QuotedValue(options_.model.dtype), "; valid values are bf16 and fp32"));
      }
      request.work.dtype = *dtype;
    }
    if (about.of_this_host) return server::CheckObjective(request);
    ASSIGN_OR_RETURN(const server::GpuPreset gpu, server::FindGpu(options_.gpu.empty() ? kDefaultGpu : options_.gpu));
    ASSIGN_OR_RETURN(about.link, ParseLink(options_.link));
    ASSIGN_OR_RETURN(request.machine, server::MachineOf(gpu, about.link, request.work.dtype));
    return server::CheckObjective(request);
  }

  const PlanOptions& options_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
};

}  // namespace

CommandRun AddPlan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  AddModelOption(app, options->model);
  BeginGroup(app, "Devices");
  AddText(app, {"--gpus", "GPUs to plan for, 1 to 1024", "N"}, options->gpus);
  AddText(app, {"--link", "How the GPUs of a group reach each other", "nvlink|pcie|ethernet"}, options->link);
  AddText(app, {"--gpu", "Name of the GPU in docs/planner.md (default: H100)", "GPU"}, options->gpu);
  AddText(app, {"--device", "Plan for ranks on this machine's processors or GPUs, which are measured", "cpu|cuda"},
          options->model.device);
  AddText(app, {"--threads", "CPU threads of all ranks together (default: all)", "N"}, options->threads);
  AddFlag(app, "--calibrate",
          "Measure this machine's processors, or with --device cuda its GPUs, again instead of reading the cache "
          "folder",
          options->calibrate);
  AddText(app, {"--dtype", "Precision (default: bf16, on cpu fp32)", "fp32|bf16"}, options->model.dtype);
  AddText(app, {"--memory-limit", "Memory of a GPU that a rank may take, such as 12GiB (default: all of it)", "SIZE"},
          options->memory_limit);
  AddText(app, {"--main-memory", "Main memory of the machine, such as 32GiB (default: enough)", "SIZE"},
          options->main_memory);
  AddText(app, {"--weights", "How weights are kept in memory (default: stored)", "stored|bf16|fp8|int8|q8_0"},
          options->weights);
  BeginGroup(app, "Images");
  AddText(app, {"-s,--size", "WIDTHxHEIGHT of an image (default: the model's)", "SIZE"}, options->size);
  AddText(app, {"--steps", "Steps of an image (default: the model's)", "N"}, options->steps);
  AddText(app,
          {"--text-tokens", "Tokens of a prompt, of a model that reads no padding (default: the most it takes)", "N"},
          options->text_tokens);
  AddText(app,
          {"--slo", "Seconds that an image may take: the plan with the most images an hour within them is recommended",
           "SECONDS"},
          options->slo);
  AddFlag(app, "--approximate", "Recommend layouts with stale steps too", options->approximate);
  BeginGroup(app, "Output");
  AddFlag(app, "--json", "One JSON object", options->json);
  AddWorkerOptions(app, options->model);
  SetFooter(
      app,
      "\nNothing is measured for GPUs of other machines, and no weights are read: docs/planner.md says what the times "
      "are computed from.");
  return [options](Interrupts& interrupts) { return Planning(*options, interrupts).Run(); };
}

}  // namespace tessera::client

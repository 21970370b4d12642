#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"
#include "client/cli/command.h"
#include "client/cli/generation_options.h"
#include "client/cli/models/adapter_files.h"
#include "client/cli/models/model_location.h"
#include "client/cli/models/picture_files.h"
#include "client/cli/option_text.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/prompt_options_json.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/layout_session.h"
#include "client/cli/session/model_options.h"
#include "server/verification/verification.h"
#include "server/workers/worker_process.h"

namespace tessera::client {
namespace {

namespace json = boost::json;

struct VerifyOptions {
  ModelOptions model;
  std::string prompt, steps, record;
  std::vector<std::string> loras;
  PictureOptions pictures;
  bool json = false;
  bool quiet = false;
};

constexpr int64_t kMaxSteps = 1000;

class Verify {
 public:
  Verify(const VerifyOptions& options, Interrupts& interrupts)
      : options_(options),
        interrupts_(interrupts),
        reporter_(MakeReporter({.json = options.json, .quiet = options.quiet})) {}

  ExitCode Run() { return Finish(reporter_, interrupts_, Execute()); }

 private:
  absl::StatusOr<ExitCode> Execute() {
    server::VerificationRequest request = {.prompt = options_.prompt, .record = options_.record};
    if (!options_.steps.empty()) {
      ASSIGN_OR_RETURN(const int64_t steps, ParseInteger("steps", options_.steps));
      if (steps < 3 || steps > kMaxSteps) {
        return absl::InvalidArgumentError(absl::StrCat("steps is ", steps, "; valid values are 3 to ", kMaxSteps));
      }
      request.steps = static_cast<int32_t>(steps);
    }
    ASSIGN_OR_RETURN(request.adapters, Adapters());
    ASSIGN_OR_RETURN(const server::LayoutRequest asked, RequestedLayout(options_.model));
    ASSIGN_OR_RETURN(request.load, RequestedLoad(options_.model, ""));
    ASSIGN_OR_RETURN(const WorkerSession::Options session_options, SessionOptions(options_.model));
    ASSIGN_OR_RETURN(request.load.model,
                     At(Stage::kModel, FindModel(options_.model.model, options_.model.model_folders)));
    ASSIGN_OR_RETURN(request.model,
                     At(Stage::kModel, WorkerSession::DescribeAlone(session_options, interrupts_, request.load.model,
                                                                    request.load.files)));
    ASSIGN_OR_RETURN(GivenPictures given, pictures_.Read(options_.pictures, request.model.pictures));
    request.images = std::move(given.images);
    request.mask = std::move(given.mask);
    request.strength = given.strength;
    ASSIGN_OR_RETURN(
        request.layout,
        server::ChooseLayout(asked, server::LayoutModelOf(request.model, request.load.dtype), request.load.device));

    ASSIGN_OR_RETURN(request.identity,
                     At(Stage::kModel, WorkerSession::IdentifyAlone(session_options, interrupts_, request.load,
                                                                    request.layout.ranks())));
    ASSIGN_OR_RETURN(const server::CertificateSubject subject,
                     At(Stage::kModel, server::SubjectOf(request, server::WorkerProgram())));
    ASSIGN_OR_RETURN(
        const server::Verification verification,
        At(Stage::kJob, server::VerifyLayout(request, subject, HostOf(session_options, interrupts_, *reporter_))));
    const server::Certificate& certificate = verification.certificate;
    const server::CertificateFolder folder(server::CertificateFolder::DefaultPath());
    if (IsKept(request)) RETURN_IF_ERROR(At(Stage::kOutput, folder.Keep(certificate)));
    Report(verification, folder.FileOf(subject), request);
    return certificate.passed() ? ExitCode::kOk : ExitCode::kDiffers;
  }

  static bool IsKept(const server::VerificationRequest& request) {
    return request.adapters.empty() && request.images.empty();
  }

  absl::StatusOr<std::vector<control::AdapterUse>> Adapters() const {
    std::vector<control::AdapterUse> adapters;
    for (const std::string& text : options_.loras) {
      const server::AdapterRequest typed = ParseAdapter(text);
      adapters.push_back({.name = typed.name, .scale = typed.scale});
    }
    RETURN_IF_ERROR(OpenAdapterFiles(adapters));
    const absl::Status valid = control::CheckAdapters(adapters);
    if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat("--lora: ", valid.message()));
    return adapters;
  }

  static std::string RecordText(const control::RecordComparison& records) {
    if (!records.parting.has_value()) {
      return absl::StrFormat("no state of %d after any block is farther than %.2g", records.states, records.farthest);
    }
    const control::StatePlace& place = records.parting->place;
    return absl::StrFormat("the runs diverge at step %d, block %d, rank %d: image %d, branch %d, %s tokens, %.2g apart",
                           place.step + 1, place.block, records.parting->rank, place.job, place.branch,
                           place.text ? "text" : "image", records.parting->distance);
  }

  static json::value DistanceJson(double distance) {
    if (std::isfinite(distance)) return distance;
    return "inf";  // as in certificates
  }

  static json::object RecordJson(const control::RecordComparison& records) {
    json::object object = {
        {"states", records.states}, {"farthest", DistanceJson(records.farthest)}, {"complete", records.complete}};
    if (records.parting.has_value()) {
      const control::StatePlace& place = records.parting->place;
      object["parting"] = {{"step", place.step + 1},
                           {"block", place.block},
                           {"rank", records.parting->rank},
                           {"image", place.job},
                           {"branch", place.branch},
                           {"tokens", place.text ? "text" : "image"},
                           {"distance", DistanceJson(records.parting->distance)}};
    }
    return object;
  }

  void Report(const server::Verification& verification, const std::string& file,
              const server::VerificationRequest& request) const {
    const auto& [certificate, records] = verification;
    const bool kept = IsKept(request);
    if (options_.json) {
      json::object event = {{"event", "verify"}, {"model", JsonText(request.load.model)}};
      event["certificate"] = kept ? json::value(JsonText(file)) : nullptr;
      event["loras"] = AdaptersJson(request.adapters);
      event["pictures"] = request.images.size();
      for (const auto& [name, value] : server::CertificateJson(certificate)) event[name] = value;
      if (records.has_value()) event["record"] = RecordJson(*records);
      PrintJsonLine(event);
      return;
    }
    const server::CertificateSubject& subject = certificate.subject;
    std::printf("%s: layout %s, %s on %s\n", certificate.passed() ? "passed" : "FAILED", subject.layout.c_str(),
                subject.dtype.c_str(), subject.device.c_str());
    for (const server::Canary& canary : certificate.canaries) {
      const std::string psnr = canary.psnr.has_value() ? absl::StrFormat("images %.1f dB apart", *canary.psnr)
                               : canary.passed()       ? "equal images"
                                                       : "no image";
      std::printf("  %dx%d, %d steps, %s: worst relative error %.2g (allowed %.2g) at step %d, %s\n", canary.width,
                  canary.height, canary.steps, canary.sampler.c_str(), canary.worst_relative_error, canary.bound,
                  canary.worst_step, psnr.c_str());
      if (canary.drift.has_value()) {
        std::printf("    stale steps drift by %.2g: this layout is not lossless\n", *canary.drift);
      }
    }
    const auto print_drift = [](const server::Canary& canary, const std::string& what, std::optional<double> drift,
                                const std::string& from, std::optional<double> psnr) {
      if (!drift.has_value()) return;
      std::printf("  %s: the last latents of %dx%d drift by %.2g from %s, images %s apart\n", what.c_str(),
                  canary.width, canary.height, *drift, from.c_str(),
                  psnr.has_value() ? absl::StrFormat("%.1f dB", *psnr).c_str() : "not");
    };
    for (const server::Canary& canary : certificate.canaries) {
      print_drift(canary, "weights in " + subject.storage, canary.storage_drift, "the stored weights'",
                  canary.storage_psnr);
      print_drift(canary, "products in " + subject.products, canary.products_drift, "plain products'",
                  canary.products_psnr);
    }
    if (records.has_value()) std::printf("%s\n", RecordText(*records).c_str());
    for (const control::AdapterUse& adapter : request.adapters) {
      std::printf("  with %s, scale %g, SHA-256 %s\n", adapter.name.c_str(), adapter.scale, adapter.digest.c_str());
    }
    if (!request.images.empty()) {
      std::printf("  from %zu picture%s%s, strength %g\n", request.images.size(), request.images.size() == 1 ? "" : "s",
                  request.mask.empty() ? "" : " with a mask", request.strength);
    }
    if (kept) {
      std::printf("certificate: %s\n", file.c_str());
    } else {
      std::printf("certificate: none, because certificates are for layouts without adapters and pictures\n");
    }
  }

  const VerifyOptions& options_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
  PictureFiles pictures_;
};

}  // namespace

CommandRun AddVerify(CLI::App& app) {
  auto options = std::make_shared<VerifyOptions>();
  AddModelOption(app, options->model);
  AddComponentOptions(app, options->model.files);
  AddPlacementOptions(app, options->model);
  AddLayoutOptions(app, options->model);
  BeginGroup(app, "Images");
  AddText(app, {"--prompt", "What the images show (default: one that every model understands)"}, options->prompt);
  AddTexts(app,
           {"--lora", "A low-rank adapter with which the images are made; may be given several times", "FILE[:SCALE]"},
           options->loras);
  AddText(app, {"--steps", "Denoising steps of each image, at least 3 (default: 6)", "N"}, options->steps);
  AddText(app,
          {"--record", "Write digests of every block's results to this new folder, and print where the runs diverge",
           "DIR"},
          options->record);
  AddPictureOptions(app, options->pictures);
  BeginGroup(app, "Output");
  AddFlag(app, "--json", "One JSON object", options->json);
  AddFlag(app, "-q,--quiet", "Print no progress", options->quiet);
  AddWorkerOptions(app, options->model);
  SetFooter(app, "\nExit code 0: the layout makes the images of one rank; 7: it does not.");
  return [options](Interrupts& interrupts) { return Verify(*options, interrupts).Run(); };
}

}  // namespace tessera::client

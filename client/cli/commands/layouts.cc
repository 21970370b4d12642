#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "client/cli/command.h"
#include "client/cli/models/model_location.h"
#include "client/cli/option_text.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/model_options.h"
#include "control/parameters/job_parameters.h"
#include "server/api/generation_request.h"
#include "server/api/request_values.h"
#include "server/verification/certificate.h"
#include "server/verification/verification.h"
#include "server/workers/layout_figures.h"
#include "server/workers/worker_process.h"

namespace tessera::client {
namespace {

namespace json = boost::json;

struct LayoutsOptions {
  ModelOptions model;
  std::string size;
  bool json = false;
};

// Whether a layout is proven to make the same images as one rank.
enum class Proof { kNotNeeded, kPassed, kFailed, kNone, kUnreadable };

const char* ProofName(Proof proof) {
  static constexpr const char* kNames[] = {"not needed", "passed", "failed", "none", "unreadable"};
  return kNames[static_cast<size_t>(proof)];
}

bool IsCertified(Proof proof) { return proof == Proof::kNotNeeded || proof == Proof::kPassed; }

struct ListedLayout {
  parallel::JudgedLayout judged;
  Proof proof = Proof::kNone;
  // The following members are set for valid layouts.
  server::RankWeights weights;
  std::optional<server::SentBytes> sent;  // nullopt: unknown
};

// The model and machine to which the figures apply.
struct ListedFor {
  std::string path;
  control::ModelDescription model;
  control::LoadParameters load;
  control::DeviceIdentity identity = {};
  int ranks = 1;
  int32_t width = 0, height = 0;
  std::optional<parallel::ForwardPass> pass;  // nullopt: the bytes that ranks send are unknown
};

json::value BytesByGroup(const parallel::ExchangedBytes& bytes) {
  return json::object{{"cfg", bytes.cfg},   {"pipe", bytes.pipe},       {"sequence", bytes.sequence},
                      {"ring", bytes.ring}, {"ulysses", bytes.ulysses}, {"tensor", bytes.tensor}};
}

json::object LayoutJson(const ListedLayout& layout, const ListedFor& about) {
  json::object object = {{"layout", parallel::LayoutText(layout.judged.layout)},
                         {"legal", layout.judged.verdict.ok()},
                         {"reason", nullptr},
                         {"certified", IsCertified(layout.proof)},
                         {"certificate", ProofName(layout.proof)},
                         {"sent_bytes_least", nullptr},
                         {"sent_bytes_most", nullptr},
                         {"sent_bytes_by_group", nullptr},
                         {"weight_bytes_first_rank", nullptr},
                         {"weight_bytes_other_ranks", nullptr}};
  if (!layout.judged.verdict.ok()) {
    object["reason"] = JsonText(std::string(layout.judged.verdict.message()));
    return object;
  }
  object["weight_bytes_first_rank"] = layout.weights.first;
  if (about.ranks > 1) object["weight_bytes_other_ranks"] = layout.weights.others;
  if (layout.sent.has_value()) {
    object["sent_bytes_least"] = layout.sent->least.total();
    object["sent_bytes_most"] = layout.sent->most.total();
    object["sent_bytes_by_group"] = BytesByGroup(layout.sent->most);
  }
  return object;
}

void PrintJson(const std::vector<ListedLayout>& layouts, const ListedFor& about) {
  json::array listed;
  for (const ListedLayout& layout : layouts) listed.push_back(LayoutJson(layout, about));
  json::object object = {{"event", "layouts"},          {"model", JsonText(about.path)},
                         {"ranks", about.ranks},        {"dtype", base::EnumName(about.load.dtype)},
                         {"device", about.load.device}, {"width", about.width},
                         {"height", about.height},      {"image_tokens", nullptr},
                         {"text_tokens", nullptr},      {"rows", nullptr},
                         {"layouts", std::move(listed)}};
  if (about.pass.has_value()) {
    object["image_tokens"] = about.pass->image_tokens;
    object["text_tokens"] = about.model.cost.text_tokens;
    object["rows"] = about.pass->text_tokens.size();
  }
  PrintJsonLine(object);
}

std::string Sent(const std::optional<server::SentBytes>& sent) {
  if (!sent.has_value()) return "?";
  const auto least = static_cast<uint64_t>(sent->least.total()), most = static_cast<uint64_t>(sent->most.total());
  return least == most ? base::ByteText(most) : absl::StrCat(base::ByteText(least), " to ", base::ByteText(most));
}

void PrintTable(const std::vector<ListedLayout>& layouts, const ListedFor& about) {
  std::printf("%s: %d blocks, %d heads, %s on %s\n", about.path.c_str(), about.model.blocks, about.model.heads,
              base::EnumName(about.load.dtype), about.load.device.c_str());
  if (about.pass.has_value()) {
    const size_t rows = about.pass->text_tokens.size();
    std::printf(
        "a step of %dx%d: %ld image tokens, %d text tokens, %zu %s\n", about.width, about.height,
        about.pass->image_tokens, about.model.cost.text_tokens, rows,
        rows == 1 ? "row (guidance has one branch: no work for a second rank of cfg)" : "rows (guidance branches)");
  }
  size_t widest = 6;
  for (const ListedLayout& layout : layouts)
    widest = std::max(widest, parallel::LayoutText(layout.judged.layout).size());
  const int width = static_cast<int>(widest);
  std::printf("\n%-*s  %-11s  %-24s  %s\n", width, "layout", "certificate", "a rank sends each step",
              about.ranks == 1 ? "weights" : "weights: first rank, others");
  size_t invalid = 0;
  for (const ListedLayout& layout : layouts) {
    if (!layout.judged.verdict.ok()) {
      ++invalid;
      continue;
    }
    std::printf("%-*s  %-11s  %-24s  %s%s\n", width, parallel::LayoutText(layout.judged.layout).c_str(),
                ProofName(layout.proof), Sent(layout.sent).c_str(), base::ByteText(layout.weights.first).c_str(),
                about.ranks == 1 ? "" : absl::StrCat(", ", base::ByteText(layout.weights.others)).c_str());
  }
  if (invalid == 0) return;
  std::printf("\nnot valid for this model:\n");
  for (const ListedLayout& layout : layouts) {
    if (layout.judged.verdict.ok()) continue;
    std::printf("%-*s  %s\n", width, parallel::LayoutText(layout.judged.layout).c_str(),
                std::string(layout.judged.verdict.message()).c_str());
  }
}

class Layouts {
 public:
  Layouts(const LayoutsOptions& options, Interrupts& interrupts)
      : options_(options), interrupts_(interrupts), reporter_(MakeReporter({.json = options.json, .quiet = true})) {}

  ExitCode Run() { return Finish(reporter_, interrupts_, Execute()); }

 private:
  absl::StatusOr<ExitCode> Execute() {
    ASSIGN_OR_RETURN(const server::LayoutRequest asked, RequestedLayout(options_.model));
    ASSIGN_OR_RETURN(const control::LoadParameters placement, RequestedLoad(options_.model, ""));
    ASSIGN_OR_RETURN(const server::ImageRequest sized, SizedRequest(options_.size));
    ASSIGN_OR_RETURN(const WorkerSession::Options session_options, SessionOptions(options_.model));
    ASSIGN_OR_RETURN(const std::string path,
                     At(Stage::kModel, FindModel(options_.model.model, options_.model.model_folders)));

    ListedFor about = {.path = path, .model = {}, .load = placement, .ranks = *asked.ranks, .pass = {}};
    ASSIGN_OR_RETURN(about.model, At(Stage::kModel, WorkerSession::DescribeAlone(session_options, interrupts_, path)));
    // Layouts can be compared for devices that this machine does not have; they then have no certificates.
    const absl::StatusOr<control::DeviceIdentity> identity =
        WorkerSession::IdentifyAlone(session_options, interrupts_, placement, about.ranks);
    if (identity.ok()) about.identity = *identity;
    RETURN_IF_ERROR(SetSize(sized, about));
    ASSIGN_OR_RETURN(const std::vector<ListedLayout> layouts, At(Stage::kModel, List(about)));
    if (options_.json) {
      PrintJson(layouts, about);
    } else {
      PrintTable(layouts, about);
    }
    return ExitCode::kOk;
  }

  static absl::Status SetSize(const server::ImageRequest& sized, ListedFor& about) {
    about.width = about.model.default_width;
    about.height = about.model.default_height;
    if (sized.width.has_value()) {
      ASSIGN_OR_RETURN(const control::JobParameters job, server::Validate(sized, about.model));
      about.width = job.width;
      about.height = job.height;
    }
    if (!about.model.transformer.known()) return absl::OkStatus();
    ASSIGN_OR_RETURN(about.pass, server::DefaultPass(about.model, about.height, about.width, about.load.dtype));
    return absl::OkStatus();
  }

  static absl::StatusOr<std::vector<ListedLayout>> List(const ListedFor& about) {
    absl::StatusOr<server::CertificateSubject> subject = server::SubjectOf(
        {.model = about.model, .load = about.load, .layout = {}, .identity = about.identity, .prompt = ""},
        server::WorkerProgram());
    if (!subject.ok()) return subject.status();
    const server::CertificateFolder folder(server::CertificateFolder::DefaultPath());
    std::vector<ListedLayout> layouts;
    for (const parallel::JudgedLayout& judged :
         parallel::JudgeLayouts(about.ranks, server::LayoutModelOf(about.model, about.load.dtype))) {
      ListedLayout listed = {.judged = judged, .weights = {}, .sent = {}};
      if (judged.verdict.ok()) {
        subject->layout = parallel::LayoutText(judged.layout);
        listed.proof = ProofOf(judged.layout, *subject, folder);
        listed.weights = server::WeightsOf(judged.layout, about.model, about.load.dtype);
        if (about.pass.has_value()) {
          ASSIGN_OR_RETURN(listed.sent, server::BytesSent(judged.layout, about.model.transformer, *about.pass));
        }
      }
      layouts.push_back(std::move(listed));
    }
    return layouts;
  }

  static Proof ProofOf(const parallel::Layout& layout, const server::CertificateSubject& subject,
                       const server::CertificateFolder& folder) {
    if (layout == parallel::Layout()) return Proof::kNotNeeded;
    const absl::StatusOr<server::Certificate> certificate = folder.Find(subject);
    if (certificate.ok()) return certificate->passed() ? Proof::kPassed : Proof::kFailed;
    return absl::IsNotFound(certificate.status()) ? Proof::kNone : Proof::kUnreadable;
  }

  const LayoutsOptions& options_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
};

}  // namespace

CommandRun AddLayouts(CLI::App& app) {
  auto options = std::make_shared<LayoutsOptions>();
  AddModelOption(app, options->model);
  AddComponentOptions(app, options->model.files);
  AddText(app,
          {.names = "--ranks", .help = "Worker processes that share an image, 1 to 8", .type = "N", .required = true},
          options->model.ranks);
  AddDeviceOptions(app, options->model);
  AddText(app, {"-s,--size", "WIDTHxHEIGHT of the image for which bytes are counted (default: the model's)", "SIZE"},
          options->size);
  BeginGroup(app, "Output");
  AddFlag(app, "--json", "One JSON object", options->json);
  AddWorkerOptions(app, options->model);
  SetFooter(
      app,
      "\nWhat ranks send is exact for a prompt of the default length and the default guidance; weights are estimates.");
  return [options](Interrupts& interrupts) { return Layouts(*options, interrupts).Run(); };
}

}  // namespace tessera::client

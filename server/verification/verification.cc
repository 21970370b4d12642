#include "server/verification/verification.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files/sha256.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "control/host/device.h"
#include "control/protocol/job_commands.h"
#include "server/verification/latent_distance.h"
#include "server/verification/probe_pictures.h"
#include "server/workers/step_loop.h"
#include "server/workers/worker_process.h"

namespace tessera::server {
namespace {

constexpr char kPrompt[] = "a red apple on a wooden table";
constexpr char kClass[] = "1";  // for models that know classes and no text
constexpr uint64_t kSeed = 20240229;
constexpr int32_t kEvenSide = 256;  // pixels, if the model allows any size
constexpr double kBoundFp64 = 1e-12;
constexpr double kBoundFp32 = 1e-5;
constexpr double kOwnDistances = 2;
constexpr double kBatchBoundBf16 = 1.0 / 64;  // two units in the last place
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One canary's run on one group.
struct Run {
  std::vector<control::LatentValues> latents;      // before the first step and after each
  std::vector<control::LatentValues> predictions;  // of each step, if forward passes are compared
  control::Frames image;
};

struct RunOptions {
  bool forwards = false;                   // predict at every step, too …
  const std::vector<Run>* from = nullptr;  // … from the latents of these runs; null: from the run's own latents
  std::string record;                      // folder for the outputs of blocks; empty: none
  // Absent: the request's.
  std::optional<control::WeightStorage> weights = {};
  std::optional<control::Products> products = {};
};

// Executes one canary step by step and keeps its results.
class CanaryRun final : public StepOwner {
 public:
  CanaryRun(WorkerGroup& group, const control::JobParameters& job, bool forwards, const Run* from, Run& run)
      : group_(group), job_(job), forwards_(forwards), from_(from), run_(run) {}

  absl::Status RunToEnd(TaskId id) {
    id_ = id;
    GroupTrace no_trace(nullptr, "", group_.ranks());
    StepLoop loop(group_, *this, no_trace, {});
    while (!has_ended_ && error_.ok()) RETURN_IF_ERROR(loop.Turn());
    return error_.ok() ? loop.FinishSteps() : error_;
  }

  // Sends a step after the previous one was examined.
  StepPlan Next(GroupId) override {
    if (is_stepping_ || !error_.ok()) return {};
    if (run_.latents.empty()) return {.start = {id_}};
    if (run_.latents.size() > steps_) return {};  // its picture is being decoded
    if (forwards_) {
      const size_t step = run_.predictions.size();
      const control::LatentValues& latents = from_ == nullptr ? run_.latents.back() : from_->latents[step];
      Keep(group_.Call(control::PredictFrom{.job = id_, .latents = latents}), run_.predictions);
      if (!error_.ok()) return {};
    }
    is_stepping_ = true;
    const bool last = run_.latents.size() == steps_;
    return {.step = {id_}, .decode = last ? std::vector<TaskId>{id_} : std::vector<TaskId>()};
  }
  void WaitForWork(GroupId, absl::Duration) override {}
  absl::StatusOr<RunnableTask> Claim(GroupId, TaskId) override {
    RunnableTask claimed;
    claimed.parameters = std::make_shared<const control::JobParameters>(job_);
    return claimed;
  }
  std::vector<int32_t> OnStarted(GroupId, TaskId, const control::JobStarted& started) override {
    steps_ = static_cast<size_t>(started.steps);
    KeepLatents();
    return {};
  }
  void OnBatchDiffers(GroupId, const std::vector<TaskId>&) override {}
  void OnStepped(GroupId, const std::vector<TaskId>& tasks, double) override {
    is_stepping_ = false;
    if (!tasks.empty()) KeepLatents();
  }
  void OnPreview(GroupId, TaskId, const control::Frames&) override {}
  void OnDecoded(GroupId, TaskId, control::Frames image, const control::JobStarted&, double) override {
    run_.image = std::move(image);
  }
  void OnFailed(GroupId, TaskId, const absl::Status& error) override { error_.Update(error); }
  void OnBatchFailed(GroupId, const std::vector<TaskId>&, const absl::Status& error) override { error_.Update(error); }
  void OnEnded(GroupId, TaskId) override { has_ended_ = true; }

 private:
  void KeepLatents() { Keep(group_.Call(control::ReadLatents{.job = id_}), run_.latents); }
  void Keep(absl::StatusOr<control::LatentValues> values, std::vector<control::LatentValues>& kept) {
    error_.Update(values.status());
    if (values.ok()) kept.push_back(*std::move(values));
  }

  WorkerGroup& group_;
  const control::JobParameters job_;
  const bool forwards_;
  const Run* const from_;
  Run& run_;
  TaskId id_ = 0;
  size_t steps_ = 0;  // that the worker runs
  bool is_stepping_ = false;
  bool has_ended_ = false;
  absl::Status error_;
};

class Verifier {
 public:
  // `probe` has the pictures of canaries for which the request has none.
  Verifier(const VerificationRequest& request, const VerificationHost& host, const std::vector<Canary>& canaries,
           const ProbePictures& probe)
      : request_(request), host_(host), canaries_(canaries), probe_(probe) {}

  control::JobParameters JobOf(const Canary& canary) const {
    control::JobParameters job = ProbeJob(request_.model, canary, request_.prompt);
    job.adapters = request_.adapters;
    job.images = request_.images;
    job.mask = request_.mask;
    job.strength = request_.strength;
    if (job.images.empty() && job.mask.empty()) {
      job.images = probe_.images();
      job.mask = probe_.mask();
    }
    return job;
  }

  // Runs all canaries. DATA_LOSS: the ranks disagreed, or the latents stopped being finite.
  absl::StatusOr<std::vector<Run>> RunAll(const parallel::Layout& layout, control::Dtype dtype,
                                          const RunOptions& options) {
    Report(absl::StrCat("running ", parallel::LayoutText(layout), " in ", base::EnumName(dtype)));
    ASSIGN_OR_RETURN(std::shared_ptr<WorkerGroup> group, host_.open(layout));
    control::LoadParameters load = request_.load;
    load.dtype = dtype;
    load.record = options.record;
    load.placement.weights = options.weights.value_or(load.placement.weights);
    load.placement.products = options.products.value_or(load.placement.products);
    // The number of threads determines the order of sums, so one rank gets as many threads as each rank of the layout:
    // then only the layout can cause differences.
    const int32_t all = load.placement.threads > 0 ? load.placement.threads : base::ReadMachineProcessors().available();
    load.placement.threads = std::max(1, all / request_.layout.ranks()) * layout.ranks();
    RETURN_IF_ERROR(Load(*group, load, layout));
    std::vector<Run> runs(canaries_.size());
    for (size_t i = 0; i < canaries_.size(); ++i) {
      const Run* from = options.from == nullptr ? nullptr : &(*options.from)[i];
      CanaryRun run(*group, JobOf(canaries_[i]), options.forwards, from, runs[i]);
      RETURN_IF_ERROR(run.RunToEnd(i + 1));
    }
    RETURN_IF_ERROR(group->Shutdown());
    return runs;
  }

 private:
  // A single rank may lack memory for what several ranks hold; then it loads its blocks one at a time.
  absl::Status Load(WorkerGroup& group, control::LoadParameters load, const parallel::Layout& layout) {
    absl::Status loaded = group.Load(load).status();
    if (loaded.code() != absl::StatusCode::kResourceExhausted || layout.ranks() > 1 || load.placement.stream_blocks) {
      return loaded;
    }
    Report("the model does not fit into one rank's memory: its blocks are read from their files for every step");
    load.placement.stream_blocks = true;
    load.placement.text_encoders = control::ComponentPlacement::kUnloaded;
    load.placement.autoencoder = control::AutoencoderPlacement::kUnloaded;
    return group.Load(load).status();
  }

  void Report(const std::string& text) {
    if (host_.report) host_.report(text);
  }

  const VerificationRequest& request_;
  const VerificationHost& host_;
  const std::vector<Canary>& canaries_;
  const ProbePictures& probe_;
};

// Records the step if it uses more of its bound than the worst one so far.
void Note(Canary& canary, size_t step, double error, double bound) {
  const auto part = [](double error, double bound) {
    if (error == 0) return 0.0;
    const double part = error / bound;
    return std::isnan(part) ? kInfinity : part;
  };
  if (step > 0 && part(error, bound) <= part(canary.worst_relative_error, canary.bound)) return;
  canary.worst_relative_error = error;
  canary.bound = bound;
  canary.worst_step = static_cast<int32_t>(step);
}

// Compares whole trajectories. `exact`: the same run in a wider dtype, or null.
void CompareTrajectories(const Run& run, const Run& serial, const Run* exact, double bound, Canary& canary) {
  double own = 0;
  for (size_t step = 0; step < serial.latents.size(); ++step) {
    if (exact != nullptr) own = std::max(own, RelativeError(serial.latents[step], exact->latents[step]));
    Note(canary, step, RelativeError(run.latents[step], serial.latents[step]), std::max(bound, kOwnDistances * own));
  }
}

// Compares single forward passes from the same latents.
void CompareForwards(const Run& run, const Run& serial, const Run& exact, Canary& canary) {
  for (size_t step = 0; step < serial.predictions.size(); ++step) {
    Note(canary, step, RelativeDistance(run.predictions[step], exact.predictions[step]),
         kOwnDistances * RelativeDistance(serial.predictions[step], exact.predictions[step]));
  }
  ++canary.worst_step;  // predictions belong to steps, not to the states between them
}

std::optional<double> Psnr(const control::Frames& a, const control::Frames& b) {
  if (!a.has_shape_of(b)) return 0;
  double sum = 0;
  for (size_t i = 0; i < a.bytes.size(); ++i) {
    const double difference = static_cast<double>(a.bytes[i]) - b.bytes[i];
    sum += difference * difference;
  }
  if (sum == 0) return std::nullopt;
  return 10 * std::log10(255.0 * 255.0 * static_cast<double>(a.bytes.size()) / sum);
}

struct RecordFolders {
  std::string serial, layout;  // empty: no records
};

// Returns absolute paths, because ranks may have another working directory.
absl::StatusOr<RecordFolders> MakeRecordFolders(const std::string& folder) {
  if (folder.empty()) return RecordFolders();
  std::error_code error;
  const std::string path = std::filesystem::absolute(folder, error);
  RecordFolders folders = {.serial = path + "/serial", .layout = path + "/layout"};
  for (const std::string& part : {folders.serial, folders.layout}) {
    if (!error) std::filesystem::create_directories(part, error);
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot make the folder of the record: ", error.message()));
  return folders;
}

// Returns the SHA-256 digest in hexadecimal.
absl::StatusOr<std::string> DigestOfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::UnavailableError("the worker program cannot be read");
  base::Sha256 digest;
  std::vector<char> buffer(size_t{1} << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0) {
    digest.Update({buffer.data(), static_cast<size_t>(file.gcount())});
  }
  return digest.Finish();
}

int32_t RoundDown(int32_t side, int32_t multiple) { return side / multiple * multiple; }

}  // namespace

double BatchBound(control::Dtype dtype, const std::string& device) {
  if (control::IsDevice(device, control::DeviceKind::kCpu)) return 0;
  if (dtype == control::Dtype::kFp64) return kBoundFp64;
  return dtype == control::Dtype::kFp32 ? kBoundFp32 : kBatchBoundBf16;
}

double RelativeError(const control::LatentValues& a, const control::LatentValues& b) {
  if (a.shape != b.shape || a.values.size() != b.values.size()) return NAN;
  double difference = 0, largest = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double apart = std::abs(a.values[i] - b.values[i]);
    if (std::isnan(apart)) return NAN;
    difference = std::max(difference, apart);
    largest = std::max(largest, std::abs(b.values[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

double RelativeDistance(const control::LatentValues& a, const control::LatentValues& b) {
  if (a.shape != b.shape || a.values.size() != b.values.size()) return NAN;
  double difference = 0, length = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double apart = a.values[i] - b.values[i];
    difference += apart * apart;
    length += b.values[i] * b.values[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / length);
}

std::vector<Canary> CanariesFor(const control::ModelDescription& model, int32_t steps) {
  const int32_t multiple = model.size_multiple;
  const int32_t least = (model.min_size + multiple - 1) / multiple * multiple;
  const int32_t most = RoundDown(model.max_size, multiple);
  const int32_t usual = std::min({kEvenSide, model.default_height, model.default_width});
  const int32_t even = std::clamp(RoundDown(usual, 2 * multiple), least, most);
  // Both sides have an odd number of tokens and differ, if the model allows it.
  const int32_t height = std::clamp(even + multiple, least, most);
  const int32_t width = std::clamp(even - multiple, least, most);
  // Use the model's default sampler, and one that draws noise in every step.
  std::string stochastic = model.default_sampler;
  if (std::ranges::find(model.samplers, "ddpm") != model.samplers.end()) stochastic = "ddpm";
  std::vector<Canary> canaries = {{.width = even, .height = even, .steps = steps, .sampler = model.default_sampler},
                                  {.width = width, .height = height, .steps = steps, .sampler = stochastic}};
  return canaries;
}

std::string ProbePrompt(const control::ModelDescription& model) {
  return model.max_sequence_length > 0 ? kPrompt : kClass;
}

control::JobParameters ProbeJob(const control::ModelDescription& model, const Canary& canary,
                                const std::string& prompt) {
  control::JobParameters job;
  job.prompt = !prompt.empty() ? prompt : ProbePrompt(model);
  job.height = canary.height;
  job.width = canary.width;
  job.steps = canary.steps;
  job.guidance_scale = model.default_guidance_scale;
  job.seed = kSeed;
  job.sampler = canary.sampler;
  job.clean_caption = model.default_clean_caption;
  job.max_sequence_length = model.default_max_sequence_length;
  return job;
}

bool NeedsIdentity(const control::LoadParameters& load) {
  return !control::IsDevice(DeviceOfRank(load.device, 0, 1), control::DeviceKind::kCpu);
}

absl::StatusOr<CertificateSubject> SubjectOf(const VerificationRequest& request, const std::string& worker) {
  ASSIGN_OR_RETURN(const std::string build, DigestOfFile(worker));
  const bool cuda = control::IsDevice(DeviceOfRank(request.load.device, 0, 1), control::DeviceKind::kCuda);
  std::string plugin;
  std::error_code error;
  if (const std::string file = CudaPluginOf(worker); cuda && std::filesystem::exists(file, error)) {
    ASSIGN_OR_RETURN(plugin, DigestOfFile(file));
  }
  return CertificateSubject{
      .model_digest = request.model.digest,
      .layout = parallel::LayoutText(request.layout),
      .device = cuda ? "cuda" : request.load.device,
      .dtype = base::EnumName(request.load.dtype),
      .storage = control::StorageText(request.load.placement.weights, control::QuantizationOf(request.model)),
      .products = control::ProductsText(request.load.placement.products),
      .build = build,
      .plugin = plugin,
      .libraries = request.model.libraries,
      .gpu = request.identity.device,
      .driver = request.identity.driver,
      .cudnn = request.identity.cudnn,
      .nccl = request.identity.nccl,
      .communicator = request.identity.communicator};
}

absl::StatusOr<Verification> VerifyLayout(const VerificationRequest& request, const CertificateSubject& subject,
                                          const VerificationHost& host) {
  const int32_t warmup = request.layout.warmup.value_or(0);
  const int32_t steps = std::clamp(std::max(request.steps, warmup + 3), 3, std::max(request.model.max_steps, 3));
  Certificate certificate = {.subject = subject, .canaries = CanariesFor(request.model, steps)};
  certificate.lossless = request.layout.lossless();
  std::vector<Canary>& canaries = certificate.canaries;
  ASSIGN_OR_RETURN(const ProbePictures probe, ProbePictures::For(request.model.pictures));
  Verifier verifier(request, host, canaries, probe);
  RETURN_IF_ERROR(control::CheckPictures(verifier.JobOf(canaries.front()), request.model.pictures));
  parallel::Layout whole = request.layout;
  whole.warmup.reset();  // all steps are warm-up steps
  const control::Dtype dtype = request.load.dtype;
  const bool trajectories = dtype != control::Dtype::kBf16;

  // A run of one rank in a wider dtype shows how much of a difference is rounding.
  std::optional<std::vector<Run>> exact;
  RunOptions options{.forwards = !trajectories};
  if (dtype != control::Dtype::kFp64) {
    absl::StatusOr<std::vector<Run>> runs =
        verifier.RunAll(parallel::Layout(), trajectories ? control::Dtype::kFp64 : control::Dtype::kFp32, options);
    // Without this run, only the fixed part of fp32's bound applies.
    if (!runs.ok() && !(trajectories && runs.status().code() == absl::StatusCode::kResourceExhausted)) {
      return runs.status();
    }
    if (runs.ok()) exact = *std::move(runs);
    if (!trajectories) options.from = &*exact;
  }
  ASSIGN_OR_RETURN(const RecordFolders records, MakeRecordFolders(request.record));
  options.record = records.serial;
  ASSIGN_OR_RETURN(const std::vector<Run> serial, verifier.RunAll(parallel::Layout(), dtype, options));
  options.record = records.layout;
  const absl::StatusOr<std::vector<Run>> runs = verifier.RunAll(whole, dtype, options);
  const bool agreed = runs.status().code() != absl::StatusCode::kDataLoss;
  if (!runs.ok() && agreed) return runs.status();
  for (size_t i = 0; i < canaries.size(); ++i) {
    if (!agreed) {
      Note(canaries[i], 0, kInfinity, trajectories ? kBoundFp64 : 0);
      continue;
    }
    const Run& run = (*runs)[i];
    const Run* wide = exact.has_value() ? &(*exact)[i] : nullptr;
    if (trajectories) {
      CompareTrajectories(run, serial[i], wide, dtype == control::Dtype::kFp64 ? kBoundFp64 : kBoundFp32, canaries[i]);
    } else {
      CompareForwards(run, serial[i], *wide, canaries[i]);
    }
    canaries[i].psnr = Psnr(run.image, serial[i].image);
  }
  if (!certificate.lossless && certificate.passed()) {
    const absl::StatusOr<std::vector<Run>> stale = verifier.RunAll(request.layout, dtype, {});
    if (!stale.ok() && stale.status().code() != absl::StatusCode::kDataLoss) return stale.status();
    for (size_t i = 0; i < canaries.size(); ++i) {
      canaries[i].drift = stale.ok() ? RelativeError((*stale)[i].latents.back(), serial[i].latents.back()) : kInfinity;
    }
  }
  // Each choice that is not lossless is compared with the run that differs from it in that choice alone.
  const control::Placement& placement = request.load.placement;
  std::optional<std::vector<Run>> plain;
  if (placement.products != control::Products::kPlain) {
    ASSIGN_OR_RETURN(plain, verifier.RunAll(parallel::Layout(), dtype, {.products = control::Products::kPlain}));
    for (size_t i = 0; i < canaries.size(); ++i) {
      canaries[i].products_drift = RelativeError(serial[i].latents.back(), (*plain)[i].latents.back());
      canaries[i].products_psnr = Psnr(serial[i].image, (*plain)[i].image);
    }
  }
  if (control::IsQuantizing(placement.weights)) {
    const std::vector<Run>& quantized = plain ? *plain : serial;
    ASSIGN_OR_RETURN(const std::vector<Run> stored, verifier.RunAll(parallel::Layout(), dtype,
                                                                    {.weights = control::WeightStorage::kStored,
                                                                     .products = control::Products::kPlain}));
    for (size_t i = 0; i < canaries.size(); ++i) {
      canaries[i].storage_drift = RelativeError(quantized[i].latents.back(), stored[i].latents.back());
      canaries[i].storage_psnr = Psnr(quantized[i].image, stored[i].image);
    }
  }
  Verification verification = {.certificate = std::move(certificate), .records = {}};
  if (!request.record.empty()) {
    ASSIGN_OR_RETURN(verification.records,
                     control::CompareRecords(records.layout, records.serial, verification.certificate.worst().bound));
  }
  return verification;
}

}  // namespace tessera::server

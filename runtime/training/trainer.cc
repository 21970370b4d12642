#include "runtime/training/trainer.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/files/private_files.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "control/model/model_description.h"
#include "control/pictures/reference_size.h"
#include "control/training/model_training.h"
#include "control/training/trainable_model.h"
#include "models/adapters/adapter.h"
#include "models/precision.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/group/heartbeat.h"
#include "runtime/training/checkpoints/agreement.h"
#include "runtime/training/checkpoints/checkpoint_folder.h"
#include "runtime/training/checkpoints/param_pieces.h"
#include "runtime/training/exports/adapter_file.h"
#include "runtime/training/exports/kohya_file.h"
#include "runtime/training/exports/weights_folder.h"
#include "runtime/training/initial_weights.h"
#include "runtime/training/shared_scan.h"

namespace tessera::runtime {
namespace {

constexpr char kLatest[] = "latest";
constexpr char kTransformer[] = "transformer";

// The validation loss is that of at most this many images, each at the middle of this many equal parts of the noise
// levels.
constexpr int64_t kEvaluatedSamples = 8;
constexpr int64_t kEvaluatedLevels = 8;
// Outside the visits of the data order, which are counted from 0.
constexpr int64_t kEvaluationEpoch = -1;

absl::Status CheckSupported(const control::TrainConfig& config, const TrainedModel& model) {
  RETURN_IF_ERROR(control::CheckTrainable(model.description.pictures));
  RETURN_IF_ERROR(control::CheckDistillation(config, model.description));
  RETURN_IF_ERROR(control::CheckStorage(config, model.description));
  RETURN_IF_ERROR(control::CheckBlocksToSwap(config, model.description));
  if (config.train.batch_size % config.parallelism.data != 0) {
    return absl::InvalidArgumentError(absl::StrCat("train.batch_size is ", config.train.batch_size,
                                                   "; it must be a multiple of parallelism.data, which is ",
                                                   config.parallelism.data));
  }
  return absl::OkStatus();
}

// Reasons why a run cannot resume from a checkpoint.
constexpr char kOtherSamples[] = " was trained on images or captions that differ from those in datasets";
constexpr char kPutBack[] = "; restore them, or start a new run";

// Values that are broadcast to the other ranks in place of a checkpoint's step.
constexpr int64_t kNoneWhole = -1;
constexpr int64_t kNone = -2;

// A killed run takes a moment to end.
constexpr absl::Duration kLockTimeout = absl::Seconds(5);

// Locks the output, because two runs must not write into one folder. Rank 0 holds the lock: only it writes checkpoints'
// names and exports. A run whose command was killed therefore keeps the folder until its last write is done.
absl::StatusOr<base::ProcessLock> LockOutput(const std::string& output, parallel::Communicator& all) {
  absl::StatusOr<base::ProcessLock> lock = base::ProcessLock();
  if (all.rank() == 0) {
    const absl::Status made = base::MakeFolder(output);
    lock = made.ok() ? base::ProcessLock::Take(output + "/run.lock", kLockTimeout) : made;
  }
  if (absl::IsFailedPrecondition(lock.status())) {
    lock = absl::FailedPreconditionError(absl::StrCat(
        "output is ", base::Quote(output), ", which another run uses: ", std::string(lock.status().message()),
        "; wait for it to end, or choose another output"));
  }
  RETURN_IF_ERROR(Agree(lock.status(), all));
  return lock;
}

// Prevents a run from mixing its checkpoints with those of another run: the checkpoint that it resumes from must be the
// output's, or the output must have none.
absl::Status CheckOutput(const std::string& output, const std::string& checkpoint) {
  if (checkpoint == kLatest || !HasCheckpoints(output)) return absl::OkStatus();
  if (checkpoint.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        output, " has checkpoints of an earlier run; continue it with --resume latest, or choose another output"));
  }
  std::error_code ignored;
  // Reading a missing checkpoint reports the error.
  if (!std::filesystem::exists(checkpoint, ignored) || BelongsTo(checkpoint, output)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--resume is ", base::Quote(checkpoint), ", and output is ", base::Quote(output),
                   ", which has other checkpoints already; continue from one of them, as with --resume latest, "
                   "or choose another output"));
}

// Called before anything in the output is read. Returns on rank 0 what an earlier start had not finished moving aside.
absl::StatusOr<SetAside> PrepareOutput(const std::string& output, const std::string& checkpoint,
                                       parallel::Communicator& all) {
  absl::StatusOr<SetAside> finished = SetAside();
  if (all.rank() == 0) {
    finished = FinishSetAside(output);
    if (const absl::Status fits = CheckOutput(output, checkpoint); finished.ok() && !fits.ok()) finished = fits;
  }
  RETURN_IF_ERROR(Agree(finished.status(), all));
  return finished;
}

// Returns the same on all ranks; one rank reads the files.
absl::StatusOr<ModelContents> ContentsOf(const TrainedModel& model) {
  parallel::Communicator& all = model.groups.all;
  absl::StatusOr<ModelContents> contents = absl::UnknownError("read by the first rank");
  const auto beat = [] {
    SignOfLife();
    return absl::OkStatus();
  };
  if (all.rank() == 0) contents = DigestContents(model.folder, model.description, beat);
  RETURN_IF_ERROR(Agree(all.rank() == 0 ? contents.status() : absl::OkStatus(), all));
  ModelContents shared;
  for (std::string ModelContents::*const digest :
       {&ModelContents::model, &ModelContents::autoencoder, &ModelContents::text}) {
    shared.*digest = GatherTexts(contents.ok() ? *contents.*digest : "", all).front();
  }
  return shared;
}

// The sizes of a sample's tensors: its bucket, and the sides of the pictures at which the model looks, as it reads
// them.
using SampleShape = std::vector<int64_t>;

SampleShape ShapeOf(const control::TrainingSet& set, const control::TrainingSample& sample, control::ReferenceFit fit) {
  SampleShape shape = {sample.bucket};
  for (const control::ControlPicture& picture : set.ControlsOf(sample)) {
    const absl::StatusOr<control::ReferenceSize> size = control::SizeOfReference(fit, picture.size);
    TORCH_CHECK(size.ok(), picture.path, ": the picture", std::string(size.status().message()));
    shape.insert(shape.end(), {size->read.width, size->read.height});
  }
  return shape;
}

// Batches are of samples with the same shapes.
absl::StatusOr<DataOrder> OrderOf(const control::TrainingSet& set, const control::TrainConfig& config,
                                  control::ReferenceFit fit) {
  std::map<SampleShape, int64_t> numbers;  // without pictures, those of the buckets
  for (size_t bucket = 0; bucket < set.buckets.size(); ++bucket) {
    numbers.emplace(SampleShape{static_cast<int64_t>(bucket)}, static_cast<int64_t>(bucket));
  }
  std::vector<OrderedSample> samples;
  samples.reserve(set.samples.size());
  for (size_t i = 0; i < set.samples.size(); ++i) {
    const control::TrainingSample& sample = set.samples[i];
    const auto number = static_cast<int64_t>(numbers.size());
    samples.push_back({.id = static_cast<int64_t>(i),
                       .bucket = numbers.try_emplace(ShapeOf(set, sample, fit), number).first->second,
                       .repeats = sample.repeats});
  }
  return DataOrder::Create(samples, config.train.batch_size, static_cast<uint64_t>(config.seed));
}

// The digest covers everything about the samples that a step depends on.
std::string DigestOf(const control::TrainingSet& set) {
  base::Sha256 digest;
  for (const control::TrainingSample& sample : set.samples) {
    digest.UpdatePart(control::DigestText(sample.digest));
    digest.UpdatePart(sample.caption);
    digest.UpdatePart(control::BucketText(set.buckets[static_cast<size_t>(sample.bucket)]));
    digest.UpdatePart(absl::StrCat(sample.repeats, " ", sample.caption_dropout_rate));
    for (const control::ControlPicture& picture : set.ControlsOf(sample)) {
      digest.UpdatePart(control::DigestText(picture.digest));
    }
  }
  return digest.Finish();
}

std::optional<PredictionType> PredictionOf(const control::TrainProcedure& train) {
  switch (train.prediction_type) {
    case control::TrainedPrediction::kEpsilon:
      return PredictionType::kEpsilon;
    case control::TrainedPrediction::kVelocity:
      return PredictionType::kVelocity;
    case control::TrainedPrediction::kScheduler:
      break;
  }
  return std::nullopt;
}

ObjectiveOptions ObjectiveOf(const control::TrainProcedure& train) {
  // Both enums have the same enumerators in the same order.
  static_assert(static_cast<int>(control::WeightingScheme::kCosmap) == static_cast<int>(WeightingScheme::kCosmap));
  return {.density = {.scheme = static_cast<WeightingScheme>(train.weighting_scheme),
                      .logit_mean = train.logit_mean,
                      .logit_std = train.logit_std,
                      .mode_scale = train.mode_scale},
          .prediction_type = PredictionOf(train),
          .snr_gamma = train.snr_gamma};
}

// The adapter has no parameters if all weights are trained.
absl::StatusOr<TrainedAdapter> AdapterOf(const control::TrainConfig& config, const TrainedModel& model) {
  if (config.network.type == control::NetworkType::kFull) return TrainedAdapter();
  std::vector<std::string> modules;
  const models::AdaptableModel adaptable = model.family.adaptable();
  for (const models::ProductSpec& product : adaptable.components.at(kTransformer)) modules.push_back(product.name);
  absl::StatusOr<TrainedAdapter> adapter = MakeTrainedAdapter(
      model.family.parameters(), model.shard,
      {.targets = config.network.target_modules.empty() ? control::DefaultTargetModules(model.description)
                                                        : config.network.target_modules,
       .rank = config.network.linear,
       .alpha = config.network.linear_alpha,
       .init = config.network.init,
       .dtype = model.family.dtype(),
       .seed = static_cast<uint64_t>(config.seed),
       .modules = std::move(modules)});
  if (model.groups.model.pipe.size() == 1 || !adapter.ok()) return adapter;
  absl::Status trains;
  if (adapter->params.empty()) {
    trains = absl::InvalidArgumentError(absl::StrCat("network.target_modules names no module of pipeline stage ",
                                                     model.groups.model.pipe.rank(),
                                                     "; name more modules, or set parallelism.pipe to 1"));
  }
  RETURN_IF_ERROR(Agree(trains, model.groups.all));
  return adapter;
}

// Reads train.assistant_adapter on every rank, and warns of its parts that are not used. Without one it has no digest.
absl::StatusOr<models::Adapter> AssistantOf(const control::TrainConfig& config, const TrainedModel& model,
                                            std::vector<std::string>& warnings) {
  const std::string& path = config.train.assistant_adapter;
  if (path.empty()) return models::Adapter();
  absl::StatusOr<models::Adapter> assistant =
      models::ReadAdapter(path, model.family.adaptable(),
                          {.dtype = model.family.dtype(), .device = model.family.device(), .tensor = model.shard});
  if (!assistant.ok()) {
    assistant = absl::Status(assistant.status().code(), absl::StrCat("train.assistant_adapter is ", base::Quote(path),
                                                                     ": ", std::string(assistant.status().message())));
  }
  RETURN_IF_ERROR(Agree(assistant.status(), model.groups.all));
  for (const auto& [component, modules] : assistant->components) {
    if (component == kTransformer) continue;
    warnings.push_back(absl::StrCat("the part for ", component, " of train.assistant_adapter is not used"));
  }
  std::string embeddings = models::EmbeddingsWarning(path, assistant->embeddings);
  if (!embeddings.empty()) warnings.push_back(std::move(embeddings));
  return assistant;
}

// The factors that are added to the products while the adapter is trained.
parallel::AdapterFactors FactorsOf(const TrainedAdapter& adapter, const models::Adapter& assistant) {
  parallel::AdapterFactors factors = adapter.factors;
  const auto modules = assistant.components.find(kTransformer);
  if (modules == assistant.components.end()) return factors;
  for (const auto& [module, of_module] : modules->second) factors.Add(module, of_module);
  return factors;
}

// The bounds with which the weights were loaded (LoadOptions::share).
std::vector<int> StageBoundsOf(const TrainedModel& model) {
  const int stages = model.groups.model.pipe.size();
  return stages > 1 ? StageBounds(model.description.transformer.block_flops, stages) : std::vector<int>();
}

// Counts the parameters of all stages. Those outside the blocks are on every stage and counted once.
int64_t CountTrained(const TrainedModel& model, const Gradients& gradients) {
  parallel::Communicator& pipe = model.groups.model.pipe;
  const at::Tensor of_blocks = at::zeros({1}, at::TensorOptions(at::kDouble).device(model.family.device()));
  int64_t of_frame = 0;
  for (const models::Param& param : gradients.params()) {
    const int64_t count = c10::multiply_integers(param.spec.shape);
    if (param.block == models::Param::kNoBlock) {
      of_frame += count;
    } else {
      of_blocks.add_(static_cast<double>(count));
    }
  }
  if (pipe.size() > 1) pipe.Sum(of_blocks, of_blocks);
  return of_frame + static_cast<int64_t>(of_blocks.item<double>());
}

std::shared_ptr<models::ShardedWeights> ShardedWeightsOf(const control::TrainConfig& config,
                                                         const TrainedModel& model) {
  if (config.parallelism.zero != control::ZeroStage::kFull || model.groups.data.size() == 1) return nullptr;
  auto weights = std::make_shared<models::ShardedWeights>(model.family.parameters(), model.groups.data);
  model.family.KeepWeightsIn(weights);
  return weights;
}

AdamWOptions OptimizerOf(const control::TrainProcedure& train) {
  return {.beta1 = train.optimizer_params.betas[0],
          .beta2 = train.optimizer_params.betas[1],
          .eps = train.optimizer_params.eps,
          .weight_decay = train.optimizer_params.weight_decay,
          .ema_decay = train.ema_decay};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const control::TrainingStart& start,
                                                         const TrainedModel& model) {
  ASSIGN_OR_RETURN(control::TrainConfig config, control::ParseTrainConfig(start.config));
  RETURN_IF_ERROR(CheckSupported(config, model));
  if (models::AreTaken(model.family.parameters())) {
    return absl::FailedPreconditionError("an earlier run has sharded the model's weights; load the model again");
  }
  ASSIGN_OR_RETURN(Objective objective, Objective::Create(model.scheduler, ObjectiveOf(config.train)));
  ASSIGN_OR_RETURN(base::ProcessLock output, LockOutput(config.output, model.groups.all));
  ASSIGN_OR_RETURN(const SetAside finished, PrepareOutput(config.output, start.checkpoint, model.groups.all));
  ASSIGN_OR_RETURN(control::TrainingSet set,
                   ScanTogether(control::DatasetOptionsOf(config, model.description), model.groups.all, SignOfLife));
  std::vector<std::string> warnings = set.TakeWarnings();
  ::malloc_trim(0);  // returns the memory that listing the images took
  ASSIGN_OR_RETURN(DataOrder order, OrderOf(set, config, model.description.pictures.fit));
  ASSIGN_OR_RETURN(TrainedAdapter adapter, AdapterOf(config, model));
  ASSIGN_OR_RETURN(const models::Adapter assistant, AssistantOf(config, model, warnings));
  if (config.network.from_scratch) {
    DrawInitialWeights(model.family.parameters(), model.shard, static_cast<uint64_t>(config.seed),
                       model.groups.model.pipe);
  }
  ASSIGN_OR_RETURN(ModelContents base, ContentsOf(model));
  std::unique_ptr<Trainer> trainer(new Trainer(std::move(config), model, std::move(output), std::move(base),
                                               std::move(objective), std::move(set), std::move(order),
                                               std::move(adapter), assistant));
  trainer->warnings_.insert(trainer->warnings_.begin(), warnings.begin(), warnings.end());
  trainer->WarnOf(finished, "an earlier start of this run was interrupted while it changed to another branch");
  if (!start.checkpoint.empty()) RETURN_IF_ERROR(trainer->Resume(start.checkpoint));
  return trainer;
}

Trainer::Trainer(control::TrainConfig config, const TrainedModel& model, base::ProcessLock output, ModelContents base,
                 Objective objective, control::TrainingSet set, DataOrder order, TrainedAdapter adapter,
                 const models::Adapter& assistant)
    : config_(std::move(config)),
      output_lock_(std::move(output)),
      model_(model),
      base_digest_(base.model),
      objective_(std::move(objective)),
      data_digest_(DigestOf(set)),
      samples_(std::move(set), model.family, model.groups,
               {.max_sequence_length = model.description.default_max_sequence_length,
                .guidance_scale = config_.train.guidance_scale,
                .clean_caption = model.description.default_clean_caption,
                .references = model.description.pictures.fit,
                .prompts_hold_pictures = control::PromptHoldsPictures(model.description.pictures.fit),
                .cache = absl::StrCat(config_.output, "/cache"),
                .base = std::move(base)}),
      order_(std::move(order)),
      adapter_(std::move(adapter)),
      training_factors_(FactorsOf(adapter_, assistant)),
      assistant_digest_(assistant.digest),
      sharded_(ShardedWeightsOf(config_, model)),
      pass_(model.family, model.groups.model,
            {.recompute = config_.train.gradient_checkpointing,
             .sequence_parallel = config_.parallelism.sequence_parallel,
             .stage_bounds = StageBoundsOf(model),
             .adapters = trains_adapter() ? &training_factors_ : nullptr,
             .weights = model.family.residency(),
             .gradients_ready = [this](int part) { gradients_.Collect(part); }}),
      gradients_(trains_adapter() ? std::span(adapter_.params) : model.family.parameters(),
                 {.sequence_parallel = config_.parallelism.sequence_parallel,
                  .staged = model.groups.model.pipe.size() > 1,
                  .sharded = trains_adapter() ? nullptr : sharded_.get()}),
      optimizer_(gradients_, OptimizerOf(config_.train),
                 config_.parallelism.zero == control::ZeroStage::kNone ? nullptr : &model.groups.data),
      trained_parameters_(CountTrained(model, gradients_)),
      learning_rate_{.base = config_.train.lr,
                     .schedule = config_.train.lr_scheduler,
                     .warmup_steps = config_.train.lr_warmup_steps,
                     .decay_steps = config_.train.lr_decay_steps,
                     .steps = config_.train.steps} {
  if (config_.train.blocks_to_swap > 0 && model.family.device().is_cpu()) {
    warnings_.push_back(
        absl::StrCat("train.blocks_to_swap is ", config_.train.blocks_to_swap, " and has no effect on a CPU"));
  }
}

control::TrainingStarted Trainer::started() const {
  return {.step = step_,
          .trained_parameters = trained_parameters_,
          .samples = samples_.count(),
          .checkpoint = resumed_from_,
          .warnings = warnings_};
}

absl::StatusOr<control::SamplesPrepared> Trainer::PrepareSamples(int64_t most) {
  const int64_t before = samples_.count();
  RETURN_IF_ERROR(samples_.Prepare(most));
  if (samples_.count() < before) RETURN_IF_ERROR(OrderAgain());
  return control::SamplesPrepared{.prepared = samples_.prepared(),
                                  .samples = samples_.count(),
                                  .cached_pictures = samples_.cached_pictures(),
                                  .cached_captions = samples_.cached_captions(),
                                  .warnings = samples_.warnings()};
}

absl::Status Trainer::OrderAgain() {
  if (!resumed_from_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(resumed_from_, kOtherSamples, ": ", samples_.left_out(), kPutBack));
  }
  ASSIGN_OR_RETURN(order_, OrderOf(samples_.set(), config_, model_.description.pictures.fit));
  data_digest_ = DigestOf(samples_.set());
  return absl::OkStatus();
}

SampleKey Trainer::KeyOf(const SampleVisit& visit) const {
  return {.seed = static_cast<uint64_t>(config_.seed), .sample = visit.id, .epoch = visit.epoch};
}

TrainingBatch Trainer::BatchOf(std::span<const SampleVisit> visits, int64_t number) const {
  TrainingBatch batch;
  std::vector<at::Tensor> latents, noise;
  std::vector<TrainingLevel> levels;
  for (const SampleVisit& visit : visits) {
    const SampleKey key = KeyOf(visit);
    const control::TrainingSample& sample = samples_.set().samples[static_cast<size_t>(visit.id)];
    const control::Bucket& bucket = samples_.set().buckets[static_cast<size_t>(sample.bucket)];
    latents.push_back(samples_.Latents(key));
    NoiseKey stream = StreamOf(key, NoisePurpose::kTrainingNoise);
    if (base::Planted("noise_of_own_rank")) stream.seed += static_cast<uint64_t>(model_.groups.model.world.rank());
    noise.push_back(NormalOf(stream, latents.back().sizes(), latents.back().scalar_type()));
    const LevelDraw draw = config_.train.low_discrepancy_timesteps ? DrawEvenLevel(key.seed, number++) : DrawLevel(key);
    levels.push_back(objective_.LevelOf(draw, model_.family.Geometry(bucket.height, bucket.width).grid.image()));
    const bool dropped = DropsCaption(key, sample.caption_dropout_rate);
    batch.rows.push_back(dropped ? samples_.NoCaption(visit.id) : samples_.Caption(visit.id));
  }
  batch.sample = objective_.Make(at::stack(latents), at::stack(noise), levels);
  AddReferences(visits, batch);
  return batch;
}

void Trainer::AddReferences(std::span<const SampleVisit> visits, TrainingBatch& batch) const {
  std::vector<std::vector<at::Tensor>> patches;  // by picture, of each sample
  for (const SampleVisit& visit : visits) {
    const SampleReferences references = samples_.References(visit.id);
    if (patches.empty()) {
      patches.resize(references.patches.size());
      batch.reference_grids = references.grids;
    }
    TORCH_CHECK(references.grids == batch.reference_grids, "samples of one batch have pictures of other sizes");
    for (size_t i = 0; i < patches.size(); ++i) patches[i].push_back(references.patches[i]);
  }
  for (const std::vector<at::Tensor>& of_samples : patches) batch.references.push_back(at::cat(of_samples));
}

std::vector<int64_t> Trainer::SamplesOf(int64_t first, int64_t passes) {
  std::vector<int64_t> samples;
  for (int64_t pass = first; pass < first + passes; ++pass) {
    const GlobalBatch batch = order_.Batch(pass);
    for (const SampleVisit& visit : SliceOf(batch, model_.groups.data.rank(), model_.groups.data.size())) {
      samples.push_back(visit.id);
    }
  }
  return samples;
}

absl::StatusOr<control::Trained> Trainer::Train() {
  if (samples_.prepared() < samples_.count()) return absl::FailedPreconditionError("not all samples are prepared");
  const absl::Duration begin = base::SteadyNow();
  const TrainingGroups& groups = model_.groups;
  const int64_t passes = config_.train.gradient_accumulation_steps;
  const auto divisor = static_cast<double>(config_.train.batch_size * passes);
  const at::Tensor loss = at::zeros({1}, at::kDouble);
  // With pipeline stages, the passes of a step are its micro-batches.
  const int64_t at_once = groups.model.pipe.size() > 1 ? passes : 1;
  for (int64_t first = 0; first < passes; first += at_once) {
    RETURN_IF_ERROR(samples_.Fetch(SamplesOf(cursor_ + first, at_once), SamplesOf(cursor_ + first + at_once, at_once)));
    std::vector<TrainingBatch> micro_batches;
    for (int64_t pass = first; pass < first + at_once; ++pass) {
      const GlobalBatch batch = order_.Batch(cursor_ + pass);
      const std::span<const SampleVisit> visits = SliceOf(batch, groups.data.rank(), groups.data.size());
      const int64_t number = (cursor_ + pass) * config_.train.batch_size + (visits.data() - batch.visits.data());
      micro_batches.push_back(BatchOf(visits, number));
    }
    loss.add_(pass_.Run(micro_batches, divisor).sum());
  }
  gradients_.Synchronize(groups);
  if (groups.data.size() > 1) groups.data.Sum(loss, loss);
  control::Trained trained = {.step = step_ + 1,
                              .loss = loss.item<double>() / divisor,
                              .gradient_norm = gradients_.GlobalNorm(groups),
                              .learning_rate = learning_rate_.At(step_)};
  // The values are equal on all ranks, so all ranks decide alike.
  trained.skipped = !std::isfinite(trained.loss) || !std::isfinite(trained.gradient_norm);
  if (!trained.skipped) {
    trained.loss_ratio = loss_mean_.RatioOf(trained.loss);
    trained.skipped = config_.train.max_loss_ratio > 0 && trained.loss_ratio > config_.train.max_loss_ratio;
  }
  if (!trained.skipped) {
    loss_mean_.Add(trained.loss);
    if (config_.train.max_grad_norm > 0) gradients_.Clip(trained.gradient_norm, config_.train.max_grad_norm);
    optimizer_.Step(trained.learning_rate);
  }
  gradients_.Clear();
  ++step_;
  cursor_ += passes;
  trained.seconds = absl::ToDoubleSeconds(base::SteadyNow() - begin);
  return trained;
}

absl::StatusOr<control::TrainingEvaluated> Trainer::Evaluate() {
  if (samples_.prepared() < samples_.count()) return absl::FailedPreconditionError("not all samples are prepared");
  const TrainingGroups& groups = model_.groups;
  const int64_t count = std::min(kEvaluatedSamples, samples_.count());
  const at::Tensor losses = at::zeros({kEvaluatedLevels}, at::kDouble);
  std::vector<int64_t> evaluated;
  for (int64_t i = 0; i < count; ++i) evaluated.push_back(i * samples_.count() / count);
  RETURN_IF_ERROR(samples_.Fetch(evaluated, {}));
  optimizer_.UseAverage(true);
  // Every replica evaluates equally often, because others may wait for its shard of the weights.
  for (int64_t first = 0; first < count; first += groups.data.size()) {
    const int64_t i = (first + groups.data.rank()) % count;
    const bool counts = first + groups.data.rank() < count;
    const SampleVisit visit{.id = evaluated[static_cast<size_t>(i)], .epoch = kEvaluationEpoch};
    const SampleKey key = KeyOf(visit);
    const at::Tensor latents = samples_.Latents(key);
    const at::Tensor noise =
        NormalOf(StreamOf(key, NoisePurpose::kTrainingNoise), latents.sizes(), latents.scalar_type());
    for (int64_t level = 0; level < kEvaluatedLevels; ++level) {
      const double middle = (static_cast<double>(level) + 0.5) / kEvaluatedLevels;
      TrainingLevel at_level =
          objective_.is_flow()
              ? objective_.AtSigma(middle)
              : objective_.AtTimestep(static_cast<int64_t>(middle * static_cast<double>(objective_.timesteps())));
      at_level.weight = 1;
      const TrainingLevel levels[] = {at_level};
      TrainingBatch batch{.sample = objective_.Make(latents.unsqueeze(0), noise.unsqueeze(0), levels),
                          .rows = {samples_.Caption(visit.id)}};
      AddReferences({&visit, 1}, batch);
      const at::Tensor loss = pass_.Evaluate(batch).sum();
      if (counts) losses[level].add_(loss);
    }
  }
  optimizer_.UseAverage(false);
  if (groups.data.size() > 1) groups.data.Sum(losses, losses);
  const at::Tensor mean = losses / static_cast<double>(count);
  const double* values = mean.const_data_ptr<double>();
  return control::TrainingEvaluated{.losses = {values, values + kEvaluatedLevels}};
}

std::string Trainer::StateJson() const {
  base::JsonWriter writer;
  writer.BeginObject();
  writer.Key("config").String(control::TrainConfigJson(config_));
  writer.Key("base_digest").String(base_digest_);
  writer.Key("data_digest").String(data_digest_);
  writer.Key("assistant_digest").String(assistant_digest_);
  writer.Key("optimizer_step").Int(optimizer_.step());
  writer.Key("cursor").Int(cursor_);
  writer.Key("loss_mean").Number(loss_mean_.mean);
  writer.Key("losses").Int(loss_mean_.count);
  writer.EndObject();
  return writer.text();
}

absl::StatusOr<int64_t> Trainer::ReadState(const std::string& state, const std::string& name) {
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromText(state, name));
  const std::string config = reader.RequiredString("config"), base_digest = reader.RequiredString("base_digest"),
                    data_digest = reader.RequiredString("data_digest");
  const int64_t optimizer_step = reader.RequiredInt("optimizer_step", 0);
  cursor_ = reader.RequiredInt("cursor", 0);
  // Checkpoints of earlier versions have none of these fields.
  const std::string assistant_digest = reader.String("assistant_digest", "");
  loss_mean_ = {.mean = reader.Number("loss_mean", 0, 0), .count = reader.Int("losses", 0, 0)};
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(const control::TrainConfig before, control::ParseTrainConfig(config));
  const bool same_samples = data_digest == data_digest_;
  RETURN_IF_ERROR(control::CheckResumed(before, config_, same_samples));
  if (base_digest != base_digest_) {
    return absl::InvalidArgumentError(absl::StrCat(name, " was trained from another model than ", config_.model,
                                                   ": its digest is ", base_digest, ", that of the model ",
                                                   base_digest_));
  }
  if (assistant_digest != assistant_digest_) {
    const char* const trained = assistant_digest.empty() ? " was trained without train.assistant_adapter"
                                : assistant_digest_.empty()
                                    ? " was trained with train.assistant_adapter, which is missing"
                                    : " was trained with another train.assistant_adapter";
    return absl::InvalidArgumentError(
        absl::StrCat(name, trained, "; restore the key and the file, or start a new run"));
  }
  if (!same_samples) {
    return absl::InvalidArgumentError(absl::StrCat(name, kOtherSamples, kPutBack));
  }
  return optimizer_step;
}

std::vector<Piece> Trainer::Pieces() const {
  std::vector<Piece> pieces;
  const auto add = [&](const char* prefix, const OptimizerState& state, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const models::ParamSpec& spec = state.param->spec;
    std::ranges::move(
        PiecesOf(absl::StrCat(prefix, spec.name), spec, model_.shard, tensor, {.begin = state.begin, .end = state.end}),
        std::back_inserter(pieces));
  };
  for (const OptimizerState& state : optimizer_.state()) {
    add(WeightPrefix(), state, state.master);
    add("exp_avg.", state, state.exp_avg);
    add("exp_avg_sq.", state, state.exp_avg_sq);
    add("ema.", state, state.ema);
  }
  return pieces;
}

absl::StatusOr<std::string> Trainer::FindLatest() {
  parallel::Communicator& all = model_.groups.all;
  const at::Tensor step = at::full({1}, kNoneWhole, at::kLong);
  absl::Status status = absl::AbortedError("rank 0 found no checkpoint");
  if (all.rank() == 0 && !HasCheckpoints(config_.output)) {
    step.fill_(kNone);
  } else if (all.rank() == 0) {
    const absl::StatusOr<FoundCheckpoint> found = LatestWhole(config_.output);
    status = found.status();
    if (found.ok()) {
      step.fill_(found->step);
      for (const std::string& reason : found->passed_over) {
        warnings_.push_back(absl::StrCat("a newer checkpoint is not complete and was skipped: ", reason));
      }
    }
  }
  all.Broadcast(step, 0);
  if (step.item<int64_t>() == kNone) return "";
  if (step.item<int64_t>() == kNoneWhole) return status;
  return absl::StrCat(config_.output, "/", CheckpointName(step.item<int64_t>()));
}

absl::Status Trainer::Resume(const std::string& checkpoint) {
  resumed_from_ = checkpoint;
  if (checkpoint == kLatest) {
    ASSIGN_OR_RETURN(resumed_from_, FindLatest());
    if (resumed_from_.empty()) {
      warnings_.push_back(absl::StrCat("there is no checkpoint yet in ", config_.output, ": starting a new run"));
      return absl::OkStatus();
    }
  }
  const absl::StatusOr<CheckpointIndex> index = ReadIndex(resumed_from_);
  RETURN_IF_ERROR(Agree(index.status(), model_.groups.all));
  ASSIGN_OR_RETURN(const int64_t optimizer_step, ReadState(index->state, resumed_from_));
  const std::vector<Piece> pieces = Pieces();
  ASSIGN_OR_RETURN(const CheckpointState state, ReadCheckpoint(resumed_from_, pieces, model_.groups.all));
  optimizer_.Resume(optimizer_step);
  step_ = state.step;
  RETURN_IF_ERROR(Agree(CheckNotDone(), model_.groups.all));
  return ContinueItsLine();
}

absl::Status Trainer::CheckNotDone() const {
  if (step_ < config_.train.steps) return absl::OkStatus();
  std::error_code error;
  // A run may have ended after its last checkpoint and before its export.
  if (step_ == config_.train.steps && !std::filesystem::exists(ExportPath(), error)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("train.steps is ", config_.train.steps, ", and the checkpoint has ",
                                                 step_, " steps already; raise train.steps"));
}

absl::Status Trainer::ContinueItsLine() {
  parallel::Communicator& all = model_.groups.all;
  // One rank decides, because others may see the folder differently.
  const at::Tensor in_line = at::zeros({1}, at::kLong);
  absl::StatusOr<SetAside> aside = SetAside();
  if (all.rank() == 0) {
    std::error_code error;
    const std::string own = absl::StrCat(config_.output, "/", CheckpointName(step_));
    in_line.fill_(std::filesystem::equivalent(resumed_from_, own, error) ? 1 : 0);
    if (in_line.item<int64_t>() == 1) aside = SetAsideAfter(config_.output, step_);
  }
  all.Broadcast(in_line, 0);
  RETURN_IF_ERROR(Agree(aside.status(), all));
  if (in_line.item<int64_t>() == 0) {
    ASSIGN_OR_RETURN(aside, WriteHead(config_.output, {.step = step_, .json = StateJson()}, Pieces(), all));
    if (std::string warning = ShowAsAdapter(); !warning.empty()) warnings_.push_back(std::move(warning));
  }
  WarnOf(*aside, absl::StrCat("the run resumes from step ", step_));
  return absl::OkStatus();
}

void Trainer::WarnOf(const SetAside& aside, const std::string& reason) {
  if (aside.names.empty()) return;
  warnings_.push_back(absl::StrCat(reason, ", so the files of another branch were moved to ", config_.output, "/",
                                   aside.folder, ": ", absl::StrJoin(aside.names, ", ")));
}

absl::StatusOr<std::string> Trainer::WriteOwnCheckpoint() const {
  RETURN_IF_ERROR(WriteCheckpoint(config_.output, {.step = step_, .json = StateJson()}, Pieces(), model_.groups.all));
  return ShowAsAdapter();
}

std::string Trainer::ShowAsAdapter() const {
  if (!trains_adapter() || model_.groups.all.rank() != 0) return "";
  const std::string checkpoint = absl::StrCat(config_.output, "/", CheckpointName(step_));
  const auto write = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(checkpoint));
    ASSIGN_OR_RETURN(const AdapterExport adapter, ServedAdapterOf(reader));
    return WritePeftFolder(checkpoint, adapter);
  };
  const absl::Status written = write();
  if (written.ok()) return "";
  return absl::StrCat(checkpoint,
                      " is a checkpoint and cannot be served as an adapter: ", std::string(written.message()));
}

std::string Trainer::ExportPath() const {
  return trains_adapter() ? absl::StrCat(config_.output, "/adapter-", step_, ".safetensors")
                          : absl::StrCat(config_.output, "/model-", step_);
}

absl::StatusOr<control::TrainingSaved> Trainer::Save(bool exports) {
  const absl::Duration begin = base::SteadyNow();
  control::TrainingSaved saved;
  const absl::StatusOr<std::string> written = WriteOwnCheckpoint();
  const std::string checkpoint = absl::StrCat(config_.output, "/", CheckpointName(step_));
  if (written.ok()) {
    saved.checkpoint = checkpoint;
    if (!written->empty()) saved.warnings.push_back(*written);
    if (model_.groups.all.rank() == 0) {
      const absl::Status kept = KeepLast(config_.output, static_cast<int>(config_.save.max_step_saves_to_keep));
      if (!kept.ok()) saved.warnings.emplace_back(kept.message());
    }
  } else {
    saved.warnings.push_back(
        absl::StrCat("no checkpoint of step ", step_, ": ", std::string(written.status().message())));
  }
  if (exports && written.ok() && model_.groups.all.rank() == 0) {
    absl::StatusOr<std::string> exported = Export(checkpoint);
    if (exported.ok()) {
      saved.exported = *std::move(exported);
    } else {
      saved.warnings.emplace_back(exported.status().message());
    }
  }
  saved.seconds = absl::ToDoubleSeconds(base::SteadyNow() - begin);
  return saved;
}

absl::StatusOr<std::string> Trainer::Export(const std::string& checkpoint) const {
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(checkpoint));
  if (trains_adapter()) return ExportAdapter(reader);
  std::string folder = ExportPath();
  RETURN_IF_ERROR(ExportWeights(
      reader, {.base = model_.folder.path(),
               .base_digest = base_digest_,
               .prediction_type =
                   prediction_type() == model_.scheduler.prediction_type ? "" : PredictionTypeName(prediction_type()),
               .prefix = ServedPrefix(),
               .folder = folder}));
  return folder;
}

absl::StatusOr<AdapterExport> Trainer::ServedAdapterOf(CheckpointReader& reader) const {
  const std::string prefix = ServedPrefix();
  constexpr absl::string_view kLeaf = ".lora_A.weight";
  AdapterExport adapter{.modules = {},
                        .base_digest = base_digest_,
                        .step = step_,
                        .prediction_type = PredictionTypeName(prediction_type()),
                        .trigger_phrase = config_.trigger_word};
  // The index includes the modules of other stages.
  for (const auto& [name, tensor] : reader.index().tensors) {
    absl::string_view module = name;
    if (!absl::ConsumePrefix(&module, prefix) || !absl::ConsumeSuffix(&module, kLeaf)) continue;
    ASSIGN_OR_RETURN(const at::Tensor a, reader.Read(absl::StrCat(prefix, module, ".lora_A.weight")));
    ASSIGN_OR_RETURN(const at::Tensor b, reader.Read(absl::StrCat(prefix, module, ".lora_B.weight")));
    adapter.modules.push_back({.name = std::string(module),
                               .a = a.to(at::kFloat),
                               .b = b.to(at::kFloat),
                               .alpha = config_.network.linear_alpha});
  }
  return adapter;
}

absl::StatusOr<std::string> Trainer::ExportAdapter(CheckpointReader& reader) const {
  ASSIGN_OR_RETURN(const AdapterExport adapter, ServedAdapterOf(reader));
  const models::AdaptableModel adaptable = model_.family.adaptable();
  std::string path = absl::StrCat(config_.output, "/adapter-", step_);
  if (adaptable.originals == models::OriginalNames::kNone) {
    // diffusers has no loader for adapters of these families; PEFT reads its own folder format.
    RETURN_IF_ERROR(WritePeftFolder(path, adapter));
  } else {
    const models::AdapterNames names(adaptable);
    RETURN_IF_ERROR(WriteKohyaFile(path + ".kohya.safetensors", adapter, names));
    RETURN_IF_ERROR(WriteComfyFile(path + ".comfyui.safetensors", adapter, names));
  }
  path += ".safetensors";
  RETURN_IF_ERROR(WritePeftFile(path, adapter));
  return path;
}

absl::StatusOr<control::TrainingSaved> Trainer::ExportAdapterTo(const std::string& path) {
  if (!trains_adapter()) return absl::FailedPreconditionError("this run trains all weights and has no adapter");
  const absl::Duration begin = base::SteadyNow();
  // Writes only what the export needs, to a name that no run resumes from.
  const std::string folder = absl::StrCat(config_.output, "/.export");
  std::vector<Piece> served = Pieces();
  std::erase_if(served, [&](const Piece& piece) { return !piece.name.starts_with(ServedPrefix()); });
  const absl::Status gathered = WriteCheckpoint(folder, {.step = step_, .json = "{}"}, served, model_.groups.all);
  control::TrainingSaved saved;
  if (model_.groups.all.rank() == 0) {
    const absl::Status written =
        gathered.ok() ? WriteAdapterOf(absl::StrCat(folder, "/", CheckpointName(step_)), path) : gathered;
    if (written.ok()) {
      saved.exported = path;
    } else {
      saved.warnings.emplace_back(written.message());
    }
    std::error_code error;
    std::filesystem::remove_all(folder, error);
  }
  saved.seconds = absl::ToDoubleSeconds(base::SteadyNow() - begin);
  return saved;
}

absl::Status Trainer::WriteAdapterOf(const std::string& checkpoint, const std::string& path) const {
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(checkpoint));
  ASSIGN_OR_RETURN(const AdapterExport adapter, ServedAdapterOf(reader));
  return WritePeftFile(path, adapter);
}

models::SharedAdapters Trainer::adapters() const {
  if (!trains_adapter()) return nullptr;
  auto set = std::make_shared<models::AdapterSet>();
  set->key = absl::StrCat("training step ", step_);
  set->prediction_type = PredictionTypeName(prediction_type());
  // Without the assistant adapter.
  set->components[kTransformer] = adapter_.factors;
  return set;
}

}  // namespace tessera::runtime

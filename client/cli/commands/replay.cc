#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/macros/status_macros.h"
#include "client/cli/command.h"
#include "client/cli/file_bytes.h"
#include "client/cli/models/adapter_files.h"
#include "client/cli/models/model_location.h"
#include "client/cli/models/picture_files.h"
#include "client/cli/output/image_comparison.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/output_files.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/layout_session.h"
#include "client/cli/session/model_options.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "server/api/generation_request.h"
#include "server/api/unused_parameters.h"
#include "server/image/image_file.h"
#include "server/metadata/fitted_parameters.h"
#include "server/metadata/image_metadata.h"
#include "server/metadata/parameters_text.h"

namespace tessera::client {
namespace {

struct ReplayOptions {
  std::string image;
  ModelOptions model;
  std::vector<std::string> loras;
  PictureOptions pictures;
  std::string output;
  bool overwrite = false;
  bool json = false;
  bool quiet = false;
};

// The metadata text has only the beginning of a digest.
bool SameDigest(const std::string& recorded, const std::string& found) {
  return recorded.empty() || absl::StartsWith(found, recorded) || absl::StartsWith(recorded, found);
}

class Replay {
 public:
  Replay(const ReplayOptions& options, Interrupts& interrupts)
      : options_(options),
        interrupts_(interrupts),
        reporter_(MakeReporter({.json = options.json, .quiet = options.quiet})) {}

  ExitCode Run() { return Finish(reporter_, interrupts_, Execute()); }

 private:
  absl::StatusOr<ExitCode> Execute() {
    ASSIGN_OR_RETURN(std::string original_bytes, ReadFileBytes(options_.image));
    absl::StatusOr<server::DecodedImage> original = server::DecodeImage(original_bytes);
    if (!original.ok()) return Named(original.status());
    if (original->parameters.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("'", options_.image, "' carries no parameters"));
    }
    absl::StatusOr<server::ImageParameters> metadata = server::ParseParameters(original->parameters);
    if (!metadata.ok()) return Named(metadata.status());
    RETURN_IF_ERROR(CheckWhole(*metadata));
    if (!options_.output.empty()) {
      RETURN_IF_ERROR(OutputFiles::Create(options_.output, options_.overwrite).status());
      RETURN_IF_ERROR(At(Stage::kOutput, OutputFiles::CheckFolder(options_.output)));
    }

    RETURN_IF_ERROR(CheckPictures(*metadata));
    std::vector<control::AdapterUse> adapters = metadata->adapters;
    RETURN_IF_ERROR(FindAdapterFiles(options_.loras, adapters));

    ModelOptions placement_options = options_.model;
    if (placement_options.dtype.empty()) placement_options.dtype = metadata->dtype;
    if (placement_options.device.empty()) placement_options.device = metadata->device;
    const auto place_as_made = [&placement_options](auto member, const std::string& made) {
      if (std::string& typed = placement_options.text(member); typed.empty()) typed = made;
    };
    place_as_made(&control::Placement::text_encoders, metadata->text_encoders);
    place_as_made(&control::Placement::autoencoder, metadata->autoencoder);
    // Other texts name what the model's own files hold.
    if (base::EnumOf<control::WeightStorage>(metadata->storage)) {
      place_as_made(&control::Placement::weights, metadata->storage);
    }
    place_as_made(&control::Placement::products, metadata->products);
    ASSIGN_OR_RETURN(control::LoadParameters placement, RequestedLoad(placement_options, ""));
    RETURN_IF_ERROR(At(Stage::kModel, StartSession()));

    ASSIGN_OR_RETURN(control::ModelDescription description, At(Stage::kModel, FindMadeBy(*metadata, placement.model)));
    ASSIGN_OR_RETURN(control::JobParameters job, server::Validate(server::RequestOf(*metadata), description));
    job.adapters = std::move(adapters);
    RETURN_IF_ERROR(ReadPictures(*metadata, description, job));
    for (const std::string& warning : server::DropUnusedParameters(job, description)) reporter_->OnWarning(warning);
    LayoutStanding standing;
    ASSIGN_OR_RETURN(control::Loaded loaded, LoadOnRecordedLayout(metadata->layout, description, placement, standing));
    reporter_->OnLoaded(LoadedOn(standing, description, placement, loaded));
    WorkerSession::Listener listener;
    int32_t steps = 0;
    listener.started = [&](const control::JobStarted& started) {
      steps = started.steps;
      reporter_->OnStarted(0, job, started);
    };
    listener.stepped = [&](const control::Stepped& stepped) { reporter_->OnStep(0, steps, stepped); };
    ASSIGN_OR_RETURN(WorkerSession::Picture picture, At(Stage::kJob, session_->MakeImage(job, listener)));
    ASSIGN_OR_RETURN(const std::string weights, At(Stage::kModel, session_->Digest()));
    if (!SameDigest(metadata->weights_digest, weights)) {
      reporter_->OnWarning(absl::StrCat("the image was made with weights of digest ", metadata->weights_digest,
                                        ", these have ", weights));
    }
    const uint64_t peak_memory = session_->PeakMemoryBytes();
    RETURN_IF_ERROR(At(Stage::kJob, session_->Close()));

    // Apply the same lossy format to the second image.
    const server::ImageParameters made_again =
        server::MetadataOf(job, {.sampler = picture.started.sampler,
                                 .model_name = ModelName(placement.model),
                                 .model = description,
                                 .placement = placement,
                                 .layout = standing.layout,
                                 .weights = weights,
                                 .products_drift = standing.certification.products_drift,
                                 .picture_key = picture_key_});
    ASSIGN_OR_RETURN(std::string text, At(Stage::kJob, server::FormatParameters(made_again)));
    ASSIGN_OR_RETURN(std::string again_bytes,
                     At(Stage::kJob, server::EncodeImage(picture.image, original->format, {.parameters = text})));
    ASSIGN_OR_RETURN(server::DecodedImage again, At(Stage::kJob, server::DecodeImage(again_bytes)));
    if (!options_.output.empty()) {
      ASSIGN_OR_RETURN(OutputFiles files, OutputFiles::Create(options_.output, options_.overwrite));
      ASSIGN_OR_RETURN(std::string name, files.NameFor({.seed = job.seed, .prompt = job.prompt}));
      RETURN_IF_ERROR(At(Stage::kOutput, files.Write(name, picture.image, text)).status());
    }
    return Report({.original = *metadata, .again = made_again, .same_bytes = original_bytes == again_bytes},
                  original->image, again.image, peak_memory);
  }

  // Returns the error of an image whose format had no room for all parameters.
  absl::Status CheckWhole(const server::ImageParameters& metadata) const {
    const auto shortened = metadata.extra.find(server::kShortenedKey);
    if (shortened == metadata.extra.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("'", options_.image, "' carries only the beginning of its ",
                                                   shortened->second, ", because its format has no room for the rest"));
  }

  absl::Status Named(const absl::Status& status) const {
    return absl::Status(status.code(), absl::StrCat("'", options_.image, "': ", std::string(status.message())));
  }

  absl::Status StartSession() {
    ASSIGN_OR_RETURN(const WorkerSession::Options options, SessionOptions(options_.model));
    ASSIGN_OR_RETURN(session_, At(Stage::kModel, WorkerSession::Start(options, interrupts_)));
    return absl::OkStatus();
  }

  absl::StatusOr<control::Loaded> LoadOn(const ModelOptions& options, const control::ModelDescription& description,
                                         const control::LoadParameters& placement, LayoutStanding& standing) {
    ASSIGN_OR_RETURN(standing, MoveToLayout(options, description, placement, interrupts_, *reporter_, session_));
    return At(Stage::kModel, session_->Load(placement));
  }

  // Loads the model on the layout that the user requests, else on the recorded one, or, with a warning, on one rank if
  // that layout is not possible here.
  absl::StatusOr<control::Loaded> LoadOnRecordedLayout(const std::string& recorded,
                                                       const control::ModelDescription& description,
                                                       const control::LoadParameters& placement,
                                                       LayoutStanding& standing) {
    ModelOptions options = options_.model;
    if (!options.layout.empty() || !options.ranks.empty() || recorded.empty()) {
      return LoadOn(options, description, placement, standing);
    }
    options.layout = recorded;
    absl::StatusOr<control::Loaded> loaded = LoadOn(options, description, placement, standing);
    if (loaded.ok() || interrupts_.requested() || recorded == parallel::LayoutText(parallel::Layout())) return loaded;
    reporter_->OnWarning(absl::StrCat(
        "the image was made on layout ", server::QuotedValue(recorded),
        ", which is not possible here, so one rank makes it again: ", std::string(loaded.status().message())));
    RETURN_IF_ERROR(StartSession());
    return LoadOn(options_.model, description, placement, standing);
  }

  // Finds the model that made the image by its recorded name and digest; a model that the user names is used unchecked.
  absl::StatusOr<control::ModelDescription> FindMadeBy(const server::ImageParameters& metadata, std::string& path) {
    if (!options_.model.model.empty()) {
      ASSIGN_OR_RETURN(path, FindModel(options_.model.model, options_.model.model_folders));
      absl::StatusOr<control::ModelDescription> description = session_->Describe(path, options_.model.files);
      if (description.ok() && !SameDigest(metadata.model_digest, description->digest)) {
        reporter_->OnWarning(absl::StrCat("the image was made by a model with digest ", metadata.model_digest,
                                          ", this one has ", description->digest));
      }
      return description;
    }
    std::vector<std::string> candidates;
    if (absl::StatusOr<std::string> chosen = FindModel("", options_.model.model_folders); chosen.ok()) {
      if (metadata.model.empty() || ModelName(*chosen) == metadata.model) candidates.push_back(*chosen);
    }
    for (const KnownModel& model : KnownModels(options_.model.model_folders)) {
      if (model.name == metadata.model) candidates.push_back(model.path);
    }
    for (const std::string& candidate : candidates) {
      absl::StatusOr<control::ModelDescription> description = session_->Describe(candidate, options_.model.files);
      if (description.status().code() == absl::StatusCode::kUnavailable) return description;
      if (!description.ok() || !SameDigest(metadata.model_digest, description->digest)) continue;
      path = candidate;
      return description;
    }
    return absl::NotFoundError(absl::StrCat("no known model is named '", metadata.model, "' and has digest ",
                                            metadata.model_digest, "; name the model's folder with --model"));
  }

  struct Making {
    server::ImageParameters original;
    server::ImageParameters again;
    bool same_bytes = false;
  };

  ExitCode Report(const Making& making, const control::Frames& original, const control::Frames& again,
                  uint64_t peak_memory) {
    const ImageComparison comparison = CompareImages(original, again);
    if (options_.json) {
      PrintJsonLine({{"event", "replay"},
                     {"identical", comparison.identical()},
                     {"same_bytes", making.same_bytes},
                     {"same_size", comparison.same_size},
                     {"pixels", comparison.pixels},
                     {"different_pixels", comparison.different_pixels},
                     {"largest_difference", comparison.largest_difference},
                     {"mean_difference", comparison.mean_difference},
                     {"mean_squared_difference", comparison.mean_squared_difference},
                     {"layout", JsonText(making.again.layout)},
                     {"recorded_layout", JsonText(making.original.layout)},
                     {"instruction_set", JsonText(making.again.instruction_set)},
                     {"recorded_instruction_set", JsonText(making.original.instruction_set)}});
    }
    reporter_->OnDone(1, 0, peak_memory);
    if (!options_.json) {
      std::printf("%s\n%s\n", Verdict(original, again, comparison, making.same_bytes).c_str(),
                  MakingText(making).c_str());
    }
    return comparison.identical() ? ExitCode::kOk : ExitCode::kDiffers;
  }

  static std::string Verdict(const control::Frames& original, const control::Frames& again,
                             const ImageComparison& comparison, bool same_bytes) {
    if (!comparison.same_size) {
      return absl::StrFormat("differs: the file is %dx%d, the image made again %dx%d", original.width, original.height,
                             again.width, again.height);
    }
    if (!comparison.identical()) {
      return absl::StrFormat("differs: %d of %d pixels, by at most %d of 255, %.4f on average",
                             comparison.different_pixels, comparison.pixels, comparison.largest_difference,
                             comparison.mean_difference);
    }
    return same_bytes ? "identical: every byte of the file"
                      : "identical: every pixel; the file differs in its other parts";
  }

  // Returns the conditions that affect the last bits of an image in addition to the request: "layout cfg=2, instruction
  // set avx2".
  static std::string ConditionsOf(const server::ImageParameters& parameters) {
    if (parameters.layout.empty()) return "a layout and an instruction set that the file does not name";
    return absl::StrCat("layout ", Shown(parameters.layout),
                        parameters.instruction_set.empty() ? "" : ", instruction set ",
                        Shown(parameters.instruction_set));
  }

  // Quotes a value from the file, which may contain anything.
  static std::string Shown(const std::string& recorded) {
    constexpr size_t kLongest = 100;
    const bool plain = recorded.size() <= kLongest && std::ranges::all_of(recorded, [](unsigned char c) {
                         return absl::ascii_isalnum(c) || c == '=' || c == ',' || c == '_';
                       });
    return plain ? recorded : server::QuotedValue(recorded);
  }

  static std::string MakingText(const Making& making) {
    const std::string original = ConditionsOf(making.original), again = ConditionsOf(making.again);
    if (original == again) return absl::StrCat("made both times with ", again);
    return absl::StrCat("made first with ", original, "; made again with ", again);
  }

  // Checks that as many pictures are given as the image was made from.
  absl::Status CheckPictures(const server::ImageParameters& metadata) const {
    const auto check = [](const char* option, const std::string& names, size_t given) -> absl::Status {
      const size_t made = std::vector<std::string>(absl::StrSplit(names, ' ', absl::SkipEmpty())).size();
      if (made == given) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("the image was made from ", made, made == 1 ? " picture" : " pictures", " of ", option, ", and ",
                       given, given == 1 ? " is" : " are", " given; name their files with ", option));
    };
    RETURN_IF_ERROR(check("--image", metadata.images, options_.pictures.images.size()));
    return check("--mask", metadata.mask, options_.pictures.mask.empty() ? 0 : 1);
  }

  absl::Status ReadPictures(const server::ImageParameters& metadata, const control::ModelDescription& model,
                            control::JobParameters& job) {
    if (options_.pictures.images.empty()) return absl::OkStatus();
    picture_key_ = PictureKey();
    ASSIGN_OR_RETURN(GivenPictures pictures, pictures_.Read(options_.pictures, model.pictures));
    job.images = std::move(pictures.images);
    job.mask = std::move(pictures.mask);
    job.strength = metadata.strength.value_or(1);
    RETURN_IF_ERROR(control::CheckPictures(job, model.pictures));
    if (server::PictureNames(picture_key_, job.images) != metadata.images ||
        server::PictureNames(picture_key_, job.mask) != metadata.mask) {
      reporter_->OnWarning("the pictures are not those of the image, or another user made it");
    }
    return absl::OkStatus();
  }

  const ReplayOptions& options_;
  PictureFiles pictures_;
  std::string picture_key_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<WorkerSession> session_;
};

}  // namespace

CommandRun AddReplay(CLI::App& app) {
  auto options = std::make_shared<ReplayOptions>();
  AddText(app, {.names = "image", .help = "PNG, JPEG or WebP file made by tessera", .type = "IMAGE", .required = true},
          options->image);
  AddTexts(app,
           {"--lora",
            "File of a low-rank adapter that the image was made with, identified by its digest; may be given "
            "several times",
            "FILE"},
           options->loras);
  AddTexts(app, {"--image", "File of a picture that the image was made from", "FILE"}, options->pictures.images);
  AddText(app, {"--mask", "File of its mask", "FILE"}, options->pictures.mask);
  AddModelOption(app, options->model);
  AddComponentOptions(app, options->model.files);
  AddPlacementOptions(app, options->model);
  AddLayoutOptions(app, options->model);
  AddCertifyOption(app, options->model);
  BeginGroup(app, "Output");
  AddText(app, {"-o,--output", "Also write the image made again", "PATTERN"}, options->output);
  AddFlag(app, "--overwrite", "Replace a file that exists (default: a new name)", options->overwrite);
  AddFlag(app, "--json", "Print events as JSON lines on standard output", options->json);
  AddFlag(app, "-q,--quiet", "Print nothing but the verdict", options->quiet);
  AddWorkerOptions(app, options->model);
  SetFooter(app, "\nExit code 0: every pixel is the same; 7: the image differs.");
  return [options](Interrupts& interrupts) { return Replay(*options, interrupts).Run(); };
}

}  // namespace tessera::client

// Runs the cases of the parts that read prompts with pictures: tokenizer, vision tower, text encoder.
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_frames.h"
#include "models/qwen_image/edit_prompt.h"
#include "models/text_encoders/picture_processor.h"
#include "models/text_encoders/qwen_vision.h"
#include "models/text_encoders/text_encoder.h"
#include "models/text_encoders/text_plan.h"
#include "models/tokenizers/tokenizer.h"
#include "tests/golden_runner/case_pictures.h"
#include "tests/golden_runner/golden_component.h"
#include "tests/golden_runner/prompt_with_pictures.h"

namespace tessera::golden {
namespace {

constexpr int64_t kAll = int64_t{1} << 30;  // tokens

absl::StatusOr<models::VisionLanguageConfig> ParseVision(base::ConfigReader& reader) {
  models::VisionLanguageConfig config = models::ParseQwen25VlWithVision(reader);
  RETURN_IF_ERROR(reader.status());
  return config;
}

// The configuration of the text encoder in a folder.
absl::StatusOr<models::VisionLanguageConfig> ReadVision(const std::string& folder) {
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromFile(folder + "/config.json", "config.json"));
  return ParseVision(reader);
}

absl::StatusOr<models::PictureProcessor> ReadProcessor(const std::string& folder,
                                                       const models::VisionLanguageConfig& config) {
  return models::ReadPictureProcessor(
      folder, "processor",
      {.picture_id = config.picture_id, .patch = config.vision.patch, .frames = config.vision.frames});
}

// The folder of another component of the same pipeline.
std::string Sibling(const std::string& folder, const char* component) {
  return (std::filesystem::path(folder).parent_path() / component).string();
}

bool IsSame(const std::vector<int64_t>& own, const base::Json* expected) {
  std::vector<int64_t> values;
  for (const base::Json& item : expected != nullptr ? expected->items() : std::span<const base::Json>()) {
    values.push_back(item.AsInt().value_or(-1));
  }
  return expected != nullptr && own == values;
}

void Exact(const std::string& name, const std::vector<int64_t>& own, const at::Tensor& expected, Report& report) {
  report.Add(name, AbsoluteError(at::tensor(own, at::kLong), expected.to(at::kLong).flatten()), 0);
}

}  // namespace

absl::Status CompareIdsWithPictures(const models::ModelFolder& folder, const std::string& prompt,
                                    const std::vector<control::Frames>& pictures, const std::string& key,
                                    const Tensors& gold, Report& report) {
  const auto expected = gold.find(key + ".input_ids");
  if (expected == gold.end()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string encoder, folder.ComponentPath("text_encoder"));
  ASSIGN_OR_RETURN(const std::string processor_folder, folder.ComponentPath("processor"));
  ASSIGN_OR_RETURN(const std::string tokenizer_folder, folder.ComponentPath("tokenizer"));
  ASSIGN_OR_RETURN(const models::VisionLanguageConfig config, ReadVision(encoder));
  ASSIGN_OR_RETURN(const models::PictureProcessor processor, ReadProcessor(processor_folder, config));
  ASSIGN_OR_RETURN(const std::unique_ptr<models::Tokenizer> tokenizer,
                   models::LoadTokenizer(folder.components().at("tokenizer").class_name, tokenizer_folder));
  std::vector<models::PatchGrid> grids;
  std::vector<int64_t> units;
  for (const control::Frames& picture : pictures) {
    ASSIGN_OR_RETURN(const models::PatchGrid grid, processor.GridOf({picture.width, picture.height}));
    grids.push_back(grid);
    units.push_back(grid.units());
  }
  const models::TextPlan plan = models::EditPlan(models::EditingOf(folder.class_name()), pictures.size());
  ASSIGN_OR_RETURN(models::PlannedText text,
                   models::PlanText(*tokenizer, plan, prompt, kAll, "prompt", "text_encoder"));
  RETURN_IF_ERROR(models::InsertPictures(text, config.picture_id, units, "prompt"));
  Exact(key + ".input_ids", text.ids, expected->second, report);
  if (const auto positions = gold.find(key + ".position_ids"); positions != gold.end()) {
    const std::array<std::vector<int64_t>, 3> own = models::PositionsOfText(text.ids, config.picture_id, grids);
    for (size_t axis = 0; axis < own.size(); ++axis) {
      Exact(absl::StrCat(key, ".position_ids of axis ", axis), own[axis], positions->second[static_cast<int64_t>(axis)],
            report);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Report> RunTokenizerOfPictures(const Case& test_case) {
  ASSIGN_OR_RETURN(const std::string text,
                   base::ReadWholeFile(test_case.Path(test_case.file), test_case.file, base::kMaxJsonBytes));
  ASSIGN_OR_RETURN(const base::Json content, base::ParseJson(text, test_case.file));
  const base::Json* const class_name = content.Find("class");
  if (class_name == nullptr || class_name->AsString() == nullptr) return absl::InvalidArgumentError("no class");
  const std::string folder = test_case.Path(test_case.Text("folder"));
  ASSIGN_OR_RETURN(const models::ModelFolder pipeline,
                   models::ModelFolder::Open(std::filesystem::path(folder).parent_path().string()));
  ASSIGN_OR_RETURN(const std::unique_ptr<models::Tokenizer> tokenizer,
                   models::LoadTokenizer(*class_name->AsString(), folder));
  ASSIGN_OR_RETURN(const models::VisionLanguageConfig config, ReadVision(Sibling(folder, "text_encoder")));
  ASSIGN_OR_RETURN(const models::PictureProcessor processor, ReadProcessor(Sibling(folder, "processor"), config));
  ASSIGN_OR_RETURN(const std::vector<control::Frames> pictures, ListedPictures(test_case));
  std::vector<int64_t> units, grids;
  for (const control::Frames& picture : pictures) {
    ASSIGN_OR_RETURN(const models::PatchGrid grid, processor.GridOf({picture.width, picture.height}));
    units.push_back(grid.units());
    grids.insert(grids.end(), {1, grid.rows, grid.columns});
  }
  const models::TextPlan plan = models::EditPlan(models::EditingOf(pipeline.class_name()), pictures.size());

  Report report;
  const base::Json* const rows = content.Find("rows");
  for (const base::Json& row : rows != nullptr ? rows->items() : std::span<const base::Json>()) {
    const std::string& prompt = *row.Find("prompt")->AsString();
    const std::string of = absl::StrCat(" of ", base::Quote(prompt));
    report.Add("template" + of, plan.before + prompt + plan.after == *row.Find("templated")->AsString() ? 0 : 1, 0);
    ASSIGN_OR_RETURN(models::PlannedText planned,
                     models::PlanText(*tokenizer, plan, prompt, kAll, "prompt", "text_encoder"));
    report.Add("templated ids" + of, IsSame(planned.ids, row.Find("templated_ids")) ? 0 : 1, 0);
    const absl::Status inserted = models::InsertPictures(planned, config.picture_id, units, "prompt");
    const base::Json* const refused = row.Find("refused");
    const bool is_refused = refused != nullptr && refused->AsBool().value_or(false);
    report.Add("refusal" + of, inserted.ok() != is_refused ? 0 : 1, 0);
    if (is_refused || row.Find("ids") == nullptr) continue;
    report.Add("ids" + of, IsSame(planned.ids, row.Find("ids")) ? 0 : 1, 0);
    std::vector<int64_t> expected;
    for (const base::Json& grid : row.Find("image_grid_thw")->items()) {
      for (const base::Json& side : grid.items()) expected.push_back(side.AsInt().value_or(-1));
    }
    report.Add("grids" + of, grids == expected ? 0 : 1, 0);
  }
  return report;
}

namespace {

// Compares what the processor makes of the case's pictures, and returns it.
absl::StatusOr<std::vector<models::EncoderPicture>> ComparePatches(const Case& test_case, const Tensors& gold,
                                                                   const models::PictureProcessor& processor,
                                                                   Report& report) {
  ASSIGN_OR_RETURN(const std::vector<control::Frames> sources, ListedPictures(test_case));
  std::vector<models::EncoderPicture> pictures;
  std::vector<int64_t> grids;
  std::vector<at::Tensor> patches;
  for (size_t i = 0; i < sources.size(); ++i) {
    ASSIGN_OR_RETURN(const control::Frames resized, processor.Resized(sources[i]));
    ComparePicture(test_case, gold, absl::StrCat("pixels.", i, ".uint8"), resized, report);
    pictures.push_back(processor.PatchesOf(resized));
    patches.push_back(pictures.back().patches);
    grids.insert(grids.end(), {1, pictures.back().grid.rows, pictures.back().grid.columns});
  }
  Exact("image_grid_thw", grids, gold.at("image_grid_thw"), report);
  if (const auto rows = gold.find("pixel_values"); rows != gold.end()) {
    const at::Tensor own =
        at::cat(patches).slice(0, 0, std::nullopt, test_case.Int("pixel_rows", 1)).slice(0, 0, rows->second.size(0));
    report.Add("pixel_values", AbsoluteError(own, rows->second), 0);
  }
  return pictures;
}

std::vector<models::PatchGrid> GridsOfPictures(const std::vector<models::EncoderPicture>& pictures) {
  std::vector<models::PatchGrid> grids;
  for (const models::EncoderPicture& picture : pictures) grids.push_back(picture.grid);
  return grids;
}

std::vector<models::EncoderPicture> PicturesOn(std::vector<models::EncoderPicture> pictures, at::Device device) {
  for (models::EncoderPicture& picture : pictures) picture.patches = picture.patches.to(device);
  return pictures;
}

constexpr std::pair<at::ScalarType, const char*> kPrecisions[] = {{at::kDouble, "64"}, {at::kFloat, "32"}};

}  // namespace

absl::StatusOr<Report> RunVisionEncoder(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  const std::string folder = test_case.Path(test_case.Text("folder"));
  ASSIGN_OR_RETURN(const models::VisionLanguageConfig read, ReadVision(folder));
  ASSIGN_OR_RETURN(const models::PictureProcessor processor,
                   ReadProcessor(test_case.Path(test_case.Text("processor")), read));
  Report report;
  ASSIGN_OR_RETURN(const std::vector<models::EncoderPicture> pictures,
                   ComparePatches(test_case, gold, processor, report));
  const std::vector<models::PatchGrid> grids = GridsOfPictures(pictures);
  const models::VisionWindows windows = models::WindowsOf(grids, read.vision.window);
  Exact("window_index", windows.order, gold.at("window_index"), report);
  std::vector<int64_t> ends = {0};
  for (const int64_t units : windows.units) ends.push_back(ends.back() + models::kMerge * models::kMerge * units);
  Exact("cu_window_seqlens", ends, gold.at("cu_window_seqlens"), report);
  const models::PatchPositions positions = models::PositionsOfPatches(grids);
  Exact("rows of patches", positions.rows, gold.at("position_ids").select(1, 0), report);
  Exact("columns of patches", positions.columns, gold.at("position_ids").select(1, 1), report);

  OneRank rank;
  for (const auto& [dtype, bits] : kPrecisions) {
    models::ParamTable table(dtype, test_case.device);
    models::VisionLanguageConfig config;
    const auto make = [](const models::VisionLanguageConfig& c, models::ParamTable& t) {
      t.IgnoreScopeInFile("model.");  // the language model, which the files also have
      return std::make_unique<models::QwenVision>(c.vision, /*first_block=*/0, t);
    };
    ASSIGN_OR_RETURN(const std::unique_ptr<models::QwenVision> tower,
                     OpenComponent(folder, folder + "/config.json", ParseVision, make, config, table));
    const double tolerance = test_case.Tolerance(absl::StrCat("fp", bits).c_str());
    const auto compare = [&](const std::string& name, const at::Tensor& actual) {
      const auto recorded = gold.find(absl::StrCat("f", bits, ".", name));
      if (recorded != gold.end()) report.Add(recorded->first, RelativeError(actual, recorded->second), tolerance);
    };
    const at::Tensor output = tower->Forward(PicturesOn(pictures, test_case.device), /*weights=*/nullptr, rank.context,
                                             [&](const std::string& part, const at::Tensor& result) {
                                               compare(part.starts_with("block.") ? part + ".hidden" : part, result);
                                             });
    compare("output", output);
  }
  return report;
}

absl::StatusOr<Report> RunTextEncoderOfPictures(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  const std::string folder = test_case.Path(test_case.Text("folder")), class_name = test_case.Text("class");
  ASSIGN_OR_RETURN(const models::ModelFolder pipeline,
                   models::ModelFolder::Open(std::filesystem::path(folder).parent_path().string()));
  ASSIGN_OR_RETURN(const models::VisionLanguageConfig read, ReadVision(folder));
  ASSIGN_OR_RETURN(const models::PictureProcessor processor, ReadProcessor(Sibling(folder, "processor"), read));
  Report report;
  ASSIGN_OR_RETURN(const std::vector<models::EncoderPicture> pictures,
                   ComparePatches(test_case, gold, processor, report));
  ASSIGN_OR_RETURN(const std::vector<control::Frames> sources, ListedPictures(test_case));
  const base::Json* const prompts = test_case.arguments.Find("prompts");
  if (prompts == nullptr || prompts->items().size() != 1) return absl::InvalidArgumentError("not one prompt");
  Tensors ids = {{"text.input_ids", gold.at("input_ids")}, {"text.position_ids", gold.at("position_ids")}};
  RETURN_IF_ERROR(CompareIdsWithPictures(pipeline, *prompts->items()[0].AsString(), sources, "text", ids, report));

  OneRank rank;
  for (const auto& [dtype, bits] : kPrecisions) {
    models::ParamTable table(dtype, test_case.device);
    models::TextEncoderConfig config;
    const auto parse = [&](base::ConfigReader& reader) {
      return models::ReadTextEncoder(class_name, reader, /*pictures=*/true);
    };
    const auto make = [](const models::TextEncoderConfig& c, models::ParamTable& t) { return c.make(t); };
    ASSIGN_OR_RETURN(const std::unique_ptr<models::TextEncoder> encoder,
                     OpenComponent(folder, folder + "/config.json", parse, make, config, table));
    for (const auto& [name, state] :
         {std::pair{"embeddings", int64_t{0}}, std::pair{"hidden.1", int64_t{1}}, {"last_hidden_state", int64_t{-1}}}) {
      const auto recorded = gold.find(absl::StrCat("f", bits, ".", name));
      if (recorded == gold.end()) continue;
      const at::Tensor own = encoder
                                 ->Forward({.ids = gold.at("input_ids").to(test_case.device),
                                            .states = {state},
                                            .pictures = PicturesOn(pictures, test_case.device)},
                                           rank.context)
                                 .hidden;
      report.Add(recorded->first, RelativeError(own, recorded->second),
                 test_case.Tolerance(absl::StrCat("fp", bits).c_str()));
    }
  }
  return report;
}

}  // namespace tessera::golden

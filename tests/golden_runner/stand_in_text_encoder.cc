#include "tests/golden_runner/stand_in_text_encoder.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/loading/param_table.h"
#include "models/text_encoders/text_encoder.h"
#include "models/weights/safetensors_writer.h"

namespace tessera::golden {
namespace {

constexpr char kPipeline[] = "Flux2Pipeline";
constexpr char kEncoder[] = "Mistral3ForConditionalGeneration";
constexpr int64_t kStates = 3;   // that the transformer reads side by side
constexpr int64_t kLayers = 30;  // the last of these states is the output of this layer

constexpr char kTokenizer[] = R"({
 "version": "1.0",
 "added_tokens": [],
 "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "<pad>": 1}, "merges": []}
})";
constexpr char kTokenizerConfig[] =
    R"({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "pad_token": "<pad>"})";

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path);
  file << text;
  return file.flush() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// Weights of zero for every parameter of the encoder.
absl::Status WriteZeros(const std::string& path, const models::TextEncoderConfig& encoder) {
  models::ParamTable table(at::kFloat, at::kMeta);
  encoder.make(table);
  std::vector<models::TensorEntry> entries;
  for (const models::Param& param : table.params()) {
    entries.push_back({.name = param.spec.name, .type = models::StoredType::kF32, .shape = param.spec.shape});
  }
  ASSIGN_OR_RETURN(models::SafetensorsWriter writer, models::SafetensorsWriter::Create(path, entries, {}));
  for (const models::TensorEntry& entry : entries) {
    size_t values = 1;
    for (const int64_t size : entry.shape) values *= static_cast<size_t>(size);
    RETURN_IF_ERROR(writer.Append(entry.name, std::vector<std::byte>(values * sizeof(float))));
  }
  return writer.Finish().status();
}

// Returns a model_index.json with the pipeline's components and the stand-in's.
std::string IndexText(const models::ModelFolder& pipeline) {
  std::vector<std::string> members = {absl::StrCat("\"_class_name\": ", base::Quote(pipeline.class_name())),
                                      absl::StrCat("\"text_encoder\": [\"transformers\", ", base::Quote(kEncoder), "]"),
                                      "\"tokenizer\": [\"transformers\", \"PreTrainedTokenizerFast\"]"};
  for (const auto& [name, component] : pipeline.components()) {
    members.push_back(absl::StrCat(base::Quote(name), ": [", base::Quote(component.library), ", ",
                                   base::Quote(component.class_name), "]"));
  }
  return absl::StrCat("{", absl::StrJoin(members, ",\n "), "}\n");
}

}  // namespace

absl::StatusOr<std::unique_ptr<StandInTextEncoder>> StandInTextEncoder::MakeIfMissing(
    const models::ModelFolder& pipeline) {
  if (pipeline.class_name() != kPipeline || pipeline.HasComponent("text_encoder")) return nullptr;
  ASSIGN_OR_RETURN(base::ConfigReader transformer, pipeline.Config("transformer"));
  const int64_t text = transformer.RequiredInt("joint_attention_dim", kStates, 1 << 20);
  RETURN_IF_ERROR(transformer.status());
  std::string path = (std::filesystem::temp_directory_path() / "tessera_golden_XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return absl::ErrnoToStatus(errno, "cannot make a temporary folder");
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): its constructor is private
  std::unique_ptr<StandInTextEncoder> stand_in(new StandInTextEncoder(path));

  const std::string config = absl::StrCat(
      "{\"text_config\": {\"vocab_size\": 2, \"hidden_size\": ", text / kStates,
      ", \"num_attention_heads\": 1, \"head_dim\": 2, \"intermediate_size\": 2, \"num_hidden_layers\": ", kLayers,
      "}}\n");
  for (const auto& [name, content] : {std::pair<const char*, std::string>("model_index.json", IndexText(pipeline)),
                                      {"text_encoder/config.json", config},
                                      {"tokenizer/tokenizer.json", kTokenizer},
                                      {"tokenizer/tokenizer_config.json", kTokenizerConfig}}) {
    RETURN_IF_ERROR(WriteText(absl::StrCat(path, "/", name), content));
  }
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromText(config, "text_encoder/config.json"));
  ASSIGN_OR_RETURN(const models::TextEncoderConfig encoder,
                   models::ReadTextEncoder(kEncoder, reader, /*pictures=*/false));
  RETURN_IF_ERROR(WriteZeros(path + "/text_encoder/model.safetensors", encoder));
  return stand_in;
}

StandInTextEncoder::~StandInTextEncoder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<models::ModelFolder> StandInTextEncoder::Open(const models::ModelFolder& pipeline) const {
  models::ComponentFolders elsewhere;
  for (const auto& [name, unused] : pipeline.components()) {
    ASSIGN_OR_RETURN(elsewhere[name], pipeline.ComponentPath(name));
  }
  return models::ModelFolder::Open(path_, elsewhere);
}

}  // namespace tessera::golden

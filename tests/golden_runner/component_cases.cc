// Cases of one component: tokenizer, text encoder, transformer, gradients, autoencoder.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "models/autoencoder/autoencoder.h"
#include "models/embedding.h"
#include "models/pixart/pixart_transformer.h"
#include "models/text_encoders/t5_encoder.h"
#include "models/tokenizers/t5_tokenizer.h"
#include "models/weight_loader.h"
#include "models/weights/file.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {
namespace {

constexpr char kPixArt[] = "PixArtTransformer2DModel";

absl::Status NotBuilt(const std::string& class_name) { return absl::UnimplementedError(class_name); }

// A component with its parameters, from `folder`; `config` may lie elsewhere.
template <class Model, class Config>
struct Component {
  Component(at::ScalarType dtype, at::Device device) : table(dtype, device) {}

  absl::Status Open(const std::string& folder, const std::string& config_path,
                    absl::StatusOr<Config> (*parse)(ConfigReader&)) {
    absl::StatusOr<ConfigReader> reader = ConfigReader::FromFile(config_path, "config.json");
    if (!reader.ok()) return reader.status();
    absl::StatusOr<Config> parsed = parse(*reader);
    if (!parsed.ok()) return parsed.status();
    config = *parsed;
    const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(folder, folder);
    if (!weights.ok()) return weights.status();
    model = std::make_unique<Model>(config, table);
    return LoadWeights(*weights, table, folder);
  }

  ParamTable table;
  Config config;
  std::unique_ptr<Model> model;
};

using PixArt = Component<PixArtTransformer, PixArtConfig>;

struct OneRank {
  SingleRank group;
  LocalAttention attention;
  ForwardContext context{.attention = attention, .tensor = group};
};

TransformerInput PixArtInput(const Tensors& in, const PixArtConfig& config, at::ScalarType dtype) {
  const at::Tensor& latents = in.at("in.hidden_states");
  const TokenGrid grid{.height = latents.size(2) / config.patch, .width = latents.size(3) / config.patch};
  TransformerInput input{.patches = Patchify(latents.to(dtype), config.patch),
                         .grid = grid,
                         .span = {.begin = 0, .end = grid.count()},
                         .timestep = in.at("in.timestep").to(dtype),
                         .text = in.at("in.encoder_hidden_states").to(dtype),
                         .text_mask = in.at("in.encoder_attention_mask")};
  if (in.contains("in.added_cond_kwargs.resolution")) {
    input.size_condition =
        at::cat({in.at("in.added_cond_kwargs.resolution"), in.at("in.added_cond_kwargs.aspect_ratio")}, 1).to(dtype);
  }
  return input;
}

std::string InputsOf(std::string file) {
  if (const size_t at = file.find(".f64."); at != std::string::npos) file.replace(at, 5, ".f32.");
  return file;
}

// Each run of bytes as one <unk>.
std::vector<int64_t> WithoutBytes(const T5Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  constexpr int64_t kUnknown = 2;
  std::vector<int64_t> result;
  bool in_bytes = false;
  for (const int64_t id : ids) {
    const bool byte = tokenizer.IsByte(id);
    if (!byte || !in_bytes) result.push_back(byte ? kUnknown : id);
    in_bytes = byte;
  }
  return result;
}

at::Tensor Wave(const at::Tensor& like, double frequency) {
  return at::cos(at::arange(like.numel(), at::kDouble) * frequency).reshape(like.sizes()).to(like.device());
}

}  // namespace

absl::StatusOr<Report> RunTokenizer(const Case& test_case) {
  const absl::StatusOr<std::string> text = ReadWholeFile(test_case.Path(test_case.file), test_case.file, kMaxJsonBytes);
  if (!text.ok()) return text.status();
  const absl::StatusOr<Json> content = ParseJson(*text, test_case.file);
  if (!content.ok()) return content.status();
  const Json* class_name = content->Find("class");
  if (class_name == nullptr || class_name->AsString() == nullptr) return absl::InvalidArgumentError("no class");
  if (*class_name->AsString() != "T5Tokenizer") return NotBuilt(*class_name->AsString());
  const absl::StatusOr<T5Tokenizer> tokenizer = T5Tokenizer::Load(test_case.Path(test_case.Text("folder")));
  if (!tokenizer.ok()) return tokenizer.status();

  Report report;
  const int64_t max_length = test_case.Int("max_length", 0);
  const Json* rows = content->Find("rows");
  const auto numbers = [](const Json* list) {
    std::vector<int64_t> values;
    if (list != nullptr) {
      for (const Json& item : list->items()) values.push_back(item.AsInt().value_or(-1));
    }
    return values;
  };
  for (const Json& row : rows ? rows->items() : std::span<const Json>()) {
    const std::string& prompt = *row.Find("prompt")->AsString();
    const std::vector<int64_t> ids = numbers(row.Find("ids"));
    const absl::StatusOr<TokenIds> whole = tokenizer->Encode(prompt, int64_t{1} << 30);
    if (!whole.ok()) return whole.status();
    // Where a model spells unknown characters as bytes, the golden's `ids` have <unk> for each run of them.
    const bool equal = whole->ids == ids || WithoutBytes(*tokenizer, whole->ids) == ids;
    report.Add(absl::StrCat("ids of ", Quote(prompt)), equal ? 0 : 1, 0);
    if (whole->ids != ids) continue;
    const Json* cut = row.Find("truncated_ids");
    const absl::StatusOr<TokenIds> truncated = tokenizer->Encode(prompt, max_length);
    if (!truncated.ok()) return truncated.status();
    report.Add(absl::StrCat("truncated ids of ", Quote(prompt)), truncated->ids == (cut ? numbers(cut) : ids) ? 0 : 1,
               0);
    report.Add("pad id", tokenizer->pad_id() == row.Find("pad_id")->AsInt() ? 0 : 1, 0);
  }
  return report;
}

absl::StatusOr<Report> RunTextEncoder(const Case& test_case) {
  if (test_case.Text("class") != "T5EncoderModel") return NotBuilt(test_case.Text("class"));
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  Component<T5Encoder, T5Config> t5(at::kFloat, test_case.device);
  const std::string folder = test_case.Path(test_case.Text("folder"));
  if (absl::Status opened = t5.Open(folder, folder + "/config.json", ParseT5Config); !opened.ok()) return opened;
  OneRank rank;
  Report report;
  const double tolerance = test_case.Tolerance("fp32");
  const at::Tensor ids = gold->at("input_ids").to(test_case.device),
                   mask = gold->at("attention_mask").to(test_case.device);
  const at::Tensor masked = t5.model->Forward(ids, mask, rank.context);
  report.Add("masked", RelativeError(masked, gold->at("last_hidden_state.masked")), tolerance);
  report.Add("unmasked",
             RelativeError(t5.model->Forward(ids, {}, rank.context), gold->at("last_hidden_state.unmasked")),
             tolerance);
  // A prompt encoded without its padding has the same hidden states: what the pipeline relies on.
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const int64_t length = mask[row].sum().item<int64_t>();
    const at::Tensor alone = t5.model->Forward(ids.slice(0, row, row + 1).slice(1, 0, length), {}, rank.context);
    const at::Tensor expected = gold->at("last_hidden_state.masked").slice(0, row, row + 1).slice(1, 0, length);
    report.Add(absl::StrCat("row ", row, " without padding"), RelativeError(alone, expected), tolerance);
  }
  return report;
}

absl::StatusOr<Report> RunTransformer(const Case& test_case) {
  if (test_case.Text("class") != kPixArt) return NotBuilt(test_case.Text("class"));
  const c10::InferenceMode no_gradients;
  const bool fp64 = test_case.Text("precision") == "f64";
  const at::ScalarType dtype = fp64 ? at::kDouble : at::kFloat;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  const absl::StatusOr<Tensors> inputs = ReadTensors(test_case.Path(InputsOf(test_case.file)));
  if (!inputs.ok()) return inputs.status();
  PixArt pixart(dtype, test_case.device);
  const std::string folder = test_case.Path(test_case.Text("folder"));
  if (absl::Status opened = pixart.Open(folder, folder + "/config.json", ParsePixArtConfig); !opened.ok())
    return opened;

  OneRank rank;
  Report report;
  const auto compare = [&](const std::string& name, const at::Tensor& actual) {
    const auto it = gold->find("out." + name);
    if (it == gold->end()) return;
    const char* tolerance = fp64 ? "fp64" : name == "time_proj" ? "fp32_time_proj" : "fp32";
    report.Add(name, RelativeError(actual.reshape(it->second.sizes()), it->second), test_case.Tolerance(tolerance));
  };
  const TransformerInput input = PixArtInput(OnDevice(*inputs, test_case.device), pixart.config, dtype);
  compare("time_proj", Sinusoid(input.timestep, dtype));
  const Conditioning conditioning = pixart.model->Condition(input, rank.context);
  compare("embedded_timestep", conditioning.embedding);
  compare("adaln", conditioning.modulation);
  BlockState state = pixart.model->Embed(input, rank.context);
  compare("patch_embed", state.image);
  compare("context", state.text);
  for (int i = 0; i < pixart.model->num_blocks(); ++i) {
    pixart.model->Block(i, state, conditioning, rank.context);
    compare(absl::StrCat("block.", i, ".hidden"), state.image);
  }
  const at::Tensor head = pixart.model->Head(state, conditioning, rank.context);
  compare("proj_out", head);
  compare("output", Unpatchify(head, input.grid, pixart.config.patch));
  return report;
}

absl::StatusOr<Report> RunGradient(const Case& test_case) {
  const absl::StatusOr<std::string> text = ReadWholeFile(test_case.Path(test_case.file), test_case.file, kMaxJsonBytes);
  if (!text.ok()) return text.status();
  const absl::StatusOr<Json> gold = ParseJson(*text, test_case.file);
  if (!gold.ok()) return gold.status();
  const std::string folder = test_case.Path(test_case.Text("folder"));
  absl::StatusOr<ConfigReader> reader = ConfigReader::FromFile(folder + "/config.json", "config.json");
  if (!reader.ok()) return reader.status();
  if (const std::string name = reader->String("_class_name", ""); name != kPixArt) return NotBuilt(name);
  const absl::StatusOr<Tensors> inputs = ReadTensors(test_case.Path(test_case.Text("inputs")));
  if (!inputs.ok()) return inputs.status();
  PixArt pixart(at::kDouble, test_case.device);
  if (absl::Status opened = pixart.Open(folder, folder + "/config.json", ParsePixArtConfig); !opened.ok())
    return opened;
  for (const Param& param : pixart.table.params()) at::Tensor(param.storage).requires_grad_(true);

  OneRank rank;
  const TransformerInput input = PixArtInput(OnDevice(*inputs, test_case.device), pixart.config, at::kDouble);
  const at::Tensor output =
      Unpatchify(tessera::RunTransformer(*pixart.model, input, rank.context), input.grid, pixart.config.patch);
  const at::Tensor loss = (output - Wave(output, 0.37)).square().mean();
  loss.backward();

  // Relative to the model's largest gradient: its reachable error, by the golden's own note.
  constexpr double kTolerance = 1e-9;
  Report report;
  const double expected_loss = gold->Find("loss")->AsNumber().value_or(0);
  report.Add("loss", std::abs(loss.item<double>() - expected_loss) / expected_loss, kTolerance);
  const Json* expected = gold->Find("parameters");
  double largest = 0;
  for (const JsonMember& row : expected->members())
    largest = std::max(largest, row.value.items()[0].AsNumber().value_or(0));
  report.Add("number of parameters", expected->members().size() == pixart.table.params().size() ? 0 : 1, 0);
  for (const Param& param : pixart.table.params()) {
    const Json* row = expected->Find(param.spec.name);
    if (row == nullptr) return absl::NotFoundError(absl::StrCat("no gradient of ", param.spec.name, " in the golden"));
    const at::Tensor gradient = param.View(param.storage.grad());
    const double norm = gradient.norm().item<double>(),
                 projection = (gradient * Wave(gradient, 0.01)).sum().item<double>();
    report.Add(param.spec.name, std::abs(norm - row->items()[0].AsNumber().value_or(0)) / largest, kTolerance);
    report.Add(param.spec.name, std::abs(projection - row->items()[1].AsNumber().value_or(0)) / largest, kTolerance);
  }
  return report;
}

absl::StatusOr<Report> RunLegacyConfig(const Case& test_case) {
  if (test_case.Text("class") != kPixArt) return NotBuilt(test_case.Text("class"));
  const c10::InferenceMode no_gradients;
  const std::string folder = test_case.Path(test_case.Text("folder"));
  PixArt own(at::kDouble, test_case.device), legacy(at::kDouble, test_case.device);
  absl::Status opened = own.Open(folder, folder + "/config.json", ParsePixArtConfig);
  if (opened.ok()) opened = legacy.Open(folder, test_case.Path(test_case.file), ParsePixArtConfig);
  if (!opened.ok()) return opened;
  const int64_t patch = own.config.patch;
  const auto empty = [&](at::IntArrayRef shape) { return at::empty(shape, test_case.device); };
  TransformerInput input{.patches = Wave(empty({2, 12, own.config.in_channels * patch * patch}), 1.3),
                         .grid = {.height = 3, .width = 4},
                         .span = {.begin = 0, .end = 12},
                         .timestep = at::tensor({999.0, 13.0}, at::kDouble).to(test_case.device),
                         .text = Wave(empty({2, 5, own.config.caption_channels}), 0.7)};
  if (own.config.additional_conditions)
    input.size_condition = at::tensor({48.0, 64.0, 0.75}, at::kDouble).repeat({2, 1}).to(test_case.device);
  OneRank rank;
  Report report;
  const at::Tensor expected = tessera::RunTransformer(*own.model, input, rank.context);
  report.Add("output", AbsoluteError(tessera::RunTransformer(*legacy.model, input, rank.context), expected), 0);
  return report;
}

absl::StatusOr<Report> RunAutoencoder(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  Component<Autoencoder, AutoencoderConfig> vae(at::kFloat, test_case.device);
  const std::string folder = test_case.Path(test_case.Text("folder"));
  if (absl::Status opened = vae.Open(folder, folder + "/config.json", ParseAutoencoderConfig); !opened.ok())
    return opened;
  OneRank rank;
  Report report;
  const double tolerance = test_case.Tolerance("fp32");
  const auto in = [&](const char* name) { return gold->at(name).to(test_case.device); };
  // The whole image at once, and in bands of one row each: both are the reference's.
  for (const int64_t band : {kDefaultBandBytes, int64_t{1}}) {
    const std::string suffix = band == 1 ? " in bands" : "";
    report.Add("decoded" + suffix,
               RelativeError(vae.model->Decode(in("in.latents"), rank.context, band), gold->at("decoded")), tolerance);
    const Autoencoder::Posterior posterior = vae.model->Encode(in("in.image"), rank.context, band);
    report.Add("mean" + suffix, RelativeError(posterior.mean, gold->at("encoded.mean")), tolerance);
    report.Add("logvar" + suffix, RelativeError(posterior.log_variance, gold->at("encoded.logvar")), tolerance);
    report.Add("latents" + suffix,
               RelativeError(vae.model->Scale(posterior.mean), gold->at("encoded.latents_from_mean")), tolerance);
    const at::Tensor sample = posterior.mean + at::exp(posterior.log_variance / 2) * in("in.posterior_noise");
    report.Add("sample" + suffix, RelativeError(vae.model->Scale(sample), gold->at("encoded.latents_from_sample")),
               tolerance);
  }
  return report;
}

}  // namespace tessera::golden

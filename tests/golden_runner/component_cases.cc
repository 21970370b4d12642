// Runs the cases of one component: tokenizer, text encoder, autoencoder.
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "models/autoencoder/autoencoder.h"
#include "models/text_encoders/text_encoder.h"
#include "models/tokenizers/tokenizer.h"
#include "tests/golden_runner/golden_component.h"

namespace tessera::golden {
namespace {

std::vector<int64_t> Numbers(const base::Json* list) {
  std::vector<int64_t> values;
  for (const base::Json& item : list ? list->items() : std::span<const base::Json>())
    values.push_back(item.AsInt().value_or(-1));
  return values;
}

// A row records either the ids padded to `max_length`, or the truncated ids if truncation changes them.
absl::Status CompareRow(const models::Tokenizer& tokenizer, const base::Json& row, int64_t max_length, Report& report) {
  const std::string& prompt = *row.Find("prompt")->AsString();
  const std::vector<int64_t> ids = Numbers(row.Find("ids"));
  const absl::StatusOr<models::TokenIds> whole = tokenizer.Encode(prompt, int64_t{1} << 30);
  if (!whole.ok()) return whole.status();
  report.Add(absl::StrCat("ids of ", base::Quote(prompt)), whole->ids == ids ? 0 : 1, 0);
  absl::StatusOr<models::TokenIds> truncated = tokenizer.Encode(prompt, max_length);
  if (!truncated.ok()) return truncated.status();
  std::vector<int64_t>& cut = truncated->ids;
  if (const base::Json* padded = row.Find("padded")) {
    const auto padding = static_cast<size_t>(max_length) - cut.size();
    const auto ones = static_cast<int64_t>(cut.size());
    cut.insert(tokenizer.pads_left() ? cut.begin() : cut.end(), padding, tokenizer.pad_id());
    report.Add(absl::StrCat("padded ids of ", base::Quote(prompt)), cut == Numbers(padded) ? 0 : 1, 0);
    const std::vector<int64_t> mask = Numbers(row.Find("mask"));
    report.Add(absl::StrCat("mask of ", base::Quote(prompt)), std::count(mask.begin(), mask.end(), 1) == ones ? 0 : 1,
               0);
    return absl::OkStatus();
  }
  const base::Json* expected = row.Find("truncated_ids");
  report.Add(absl::StrCat("truncated ids of ", base::Quote(prompt)),
             cut == (expected ? Numbers(expected) : ids) ? 0 : 1, 0);
  report.Add("pad id", tokenizer.pad_id() == row.Find("pad_id")->AsInt() ? 0 : 1, 0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunTokenizer(const Case& test_case) {
  const absl::StatusOr<std::string> text =
      base::ReadWholeFile(test_case.Path(test_case.file), test_case.file, base::kMaxJsonBytes);
  if (!text.ok()) return text.status();
  const absl::StatusOr<base::Json> content = base::ParseJson(*text, test_case.file);
  if (!content.ok()) return content.status();
  const base::Json* class_name = content->Find("class");
  if (class_name == nullptr || class_name->AsString() == nullptr) return absl::InvalidArgumentError("no class");
  const absl::StatusOr<std::unique_ptr<models::Tokenizer>> loaded =
      models::LoadTokenizer(*class_name->AsString(), test_case.Path(test_case.Text("folder")));
  if (!loaded.ok()) return loaded.status();
  models::Tokenizer* tokenizer = loaded->get();
  tokenizer->UseUnknownToken();  // like transformers 5, which recorded `ids`

  Report report;
  const base::Json* recorded_length = content->Find("max_length");
  const int64_t max_length = test_case.Int("max_length", recorded_length ? recorded_length->AsInt().value_or(0) : 0);
  const base::Json* rows = content->Find("rows");
  for (const base::Json& row : rows ? rows->items() : std::span<const base::Json>()) {
    RETURN_IF_ERROR(CompareRow(*tokenizer, row, max_length, report));
  }
  return report;
}

absl::StatusOr<Report> RunTextEncoder(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  const std::string folder = test_case.Path(test_case.Text("folder")), class_name = test_case.Text("class");
  models::ParamTable table(at::kFloat, test_case.device);
  models::TextEncoderConfig config;
  const auto parse = [&](base::ConfigReader& reader) { return models::ReadTextEncoder(class_name, reader); };
  const auto make = [](const models::TextEncoderConfig& c, models::ParamTable& t) { return c.make(t); };
  absl::StatusOr<std::unique_ptr<models::TextEncoder>> opened =
      OpenComponent(folder, folder + "/config.json", parse, make, config, table);
  if (!opened.ok()) return opened.status();
  const models::TextEncoder& encoder = **opened;
  OneRank rank;
  Report report;
  const double tolerance = test_case.Tolerance("fp32");
  const at::Tensor ids = gold->at("input_ids").to(test_case.device);
  at::Tensor mask;
  if (const auto it = gold->find("attention_mask"); it != gold->end()) mask = it->second.to(test_case.device);
  const auto compare = [&](const std::string& name, const at::Tensor& actual) {
    if (const auto it = gold->find(name); it != gold->end()) {
      report.Add(name, RelativeError(actual, it->second), tolerance);
    }
  };
  if (config.pooled_width > 0) {
    const models::EncodedTokens last = encoder.Forward({.ids = ids}, rank.context);
    compare("last_hidden_state", last.hidden);
    compare("pooled", last.pooled);
    compare("penultimate", encoder.Forward({.ids = ids, .states = {-2}}, rank.context).hidden);
    return report;
  }
  const at::Tensor masked = encoder.Forward({.ids = ids, .mask = mask}, rank.context).hidden;
  const at::Tensor unmasked = encoder.Forward({.ids = ids}, rank.context).hidden;
  compare("last_hidden_state", masked);
  compare("last_hidden_state.masked", masked);
  compare("last_hidden_state.unmasked", unmasked);
  // A prompt encoded without padding must have the same states. PixArt's pipeline relies on this.
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const int64_t length = mask[row].sum().item<int64_t>();
    const at::Tensor alone =
        encoder.Forward({.ids = ids.slice(0, row, row + 1).slice(1, 0, length)}, rank.context).hidden;
    report.Add(absl::StrCat("row ", row, " without padding"),
               RelativeError(alone, masked.slice(0, row, row + 1).slice(1, 0, length)), tolerance);
  }
  return report;
}

absl::StatusOr<Report> RunAutoencoder(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  const std::string folder = test_case.Path(test_case.Text("folder"));
  models::ParamTable table(at::kFloat, test_case.device);
  models::AutoencoderConfig config;
  const auto make = [](const models::AutoencoderConfig& c, models::ParamTable& t) {
    return std::make_unique<models::Autoencoder>(c, t);
  };
  const absl::StatusOr<std::unique_ptr<models::Autoencoder>> vae =
      OpenComponent(folder, folder + "/config.json", models::ParseAutoencoderConfig, make, config, table);
  if (!vae.ok()) return vae.status();
  OneRank rank;
  Report report;
  const double tolerance = test_case.Tolerance("fp32");
  const auto in = [&](const char* name) { return gold->at(name).to(test_case.device); };
  // Decodes and encodes the whole image at once, and in bands of one row each. Both must match the reference.
  for (const int64_t band : {models::BandBytesOn(test_case.device), int64_t{1}}) {
    const std::string suffix = band == 1 ? " in bands" : "";
    report.Add("decoded" + suffix,
               RelativeError((*vae)->DecodeInBands(in("in.latents"), rank.context, band), gold->at("decoded")),
               tolerance);
    const models::Autoencoder::Posterior posterior = (*vae)->EncodeInBands(in("in.image"), rank.context, band);
    report.Add("mean" + suffix, RelativeError(posterior.mean, gold->at("encoded.mean")), tolerance);
    report.Add("logvar" + suffix, RelativeError(posterior.log_variance, gold->at("encoded.logvar")), tolerance);
    report.Add("latents" + suffix,
               RelativeError((*vae)->norm().Apply(posterior.mean), gold->at("encoded.latents_from_mean")), tolerance);
    const at::Tensor sample = posterior.mean + at::exp(posterior.log_variance / 2) * in("in.posterior_noise");
    report.Add("sample" + suffix, RelativeError((*vae)->norm().Apply(sample), gold->at("encoded.latents_from_sample")),
               tolerance);
  }
  return report;
}

}  // namespace tessera::golden

// Runs the cases of one component: tokenizer, text encoder.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "models/text_encoders/text_encoder.h"
#include "models/text_encoders/text_plan.h"
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

// Compares the templated text as the pipeline pads or cuts it.
absl::Status ComparePadded(const models::Tokenizer& tokenizer, const base::Json& row, int64_t max_length,
                           Report& report) {
  const std::string& templated = *row.Find("templated")->AsString();
  ASSIGN_OR_RETURN(const models::PlannedText text,
                   models::PlanText(tokenizer, {.has_frame = true, .padding = models::TextPadding::kMasked}, templated,
                                    max_length, "prompt", "text_encoder"));
  const std::string what = base::Quote(*row.Find("prompt")->AsString());
  report.Add("padded ids of " + what, text.ids == Numbers(row.Find("padded_ids")) ? 0 : 1, 0);
  report.Add("mask of " + what, text.mask == Numbers(row.Find("attention_mask")) ? 0 : 1, 0);
  report.Add("length of " + what, text.tokens == row.Find("length")->AsInt() ? 0 : 1, 0);
  return absl::OkStatus();
}

// A row of a tokenizer whose prompts the reference puts into a template before it encodes them.
absl::Status CompareTemplatedRow(const models::Tokenizer& tokenizer, const base::Json& row, int64_t max_length,
                                 Report& report) {
  const bool has_frame = row.Find("bare_ids") != nullptr;  // the template contains the start token
  const std::string& prompt = *row.Find("prompt")->AsString();
  const auto compare = [&](const char* what, const std::string& text, int64_t length, const base::Json* expected,
                           bool bare = false) {
    const absl::StatusOr<models::TokenIds> ids =
        bare ? tokenizer.EncodeBare(text, length) : tokenizer.Encode(text, length);
    if (!ids.ok()) return ids.status();
    report.Add(absl::StrCat(what, " of ", base::Quote(prompt)), ids->ids == Numbers(expected) ? 0 : 1, 0);
    return absl::OkStatus();
  };
  constexpr int64_t kAll = int64_t{1} << 30;
  const std::string& templated = *row.Find("templated")->AsString();
  RETURN_IF_ERROR(compare("ids", prompt, kAll, row.Find("ids")));
  RETURN_IF_ERROR(compare("templated ids", templated, kAll, row.Find("templated_ids"), has_frame));
  if (has_frame) {
    RETURN_IF_ERROR(compare("ids alone", prompt, kAll, row.Find("bare_ids"), /*bare=*/true));
    return ComparePadded(tokenizer, row, max_length, report);
  }
  const base::Json* const cut = row.Find("truncated_ids");
  RETURN_IF_ERROR(compare("truncated ids", templated, max_length, cut != nullptr ? cut : row.Find("templated_ids")));
  const int64_t length = std::ssize(Numbers(cut != nullptr ? cut : row.Find("templated_ids")));
  report.Add("length", length == row.Find("length")->AsInt() ? 0 : 1, 0);
  report.Add("pad id", tokenizer.pad_id() == row.Find("pad_id")->AsInt() ? 0 : 1, 0);
  return absl::OkStatus();
}

// Opens the text encoder of a case with a configuration from any file.
struct OpenedEncoder {
  OpenedEncoder(at::ScalarType dtype, at::Device device) : table(dtype, device) {}

  absl::Status Open(const Case& test_case, const std::string& config_path, bool pictures = false) {
    const std::string folder = test_case.Path(test_case.Text("folder")), class_name = test_case.Text("class");
    const auto parse = [&](base::ConfigReader& reader) {
      return models::ReadTextEncoder(class_name, reader, pictures);
    };
    const auto make = [](const models::TextEncoderConfig& c, models::ParamTable& t) { return c.make(t); };
    ASSIGN_OR_RETURN(encoder, OpenComponent(folder, config_path, parse, make, config, table));
    return absl::OkStatus();
  }

  models::ParamTable table;
  models::TextEncoderConfig config;
  std::unique_ptr<models::TextEncoder> encoder;
};

// The tokens of its template whose states the pipeline of Qwen-Image drops.
constexpr int64_t kDroppedTokens = 34;

// Compares the hidden states of a decoder-only language model. Only the rows of tokens count, unless the case says that
// the transformer reads padding, too.
void CompareDecoderStates(const Case& test_case, const models::TextEncoder& encoder, const at::Tensor& ids,
                          const at::Tensor& mask, const Tensors& gold, Report& report) {
  OneRank rank;
  const bool all = test_case.Text("rows") == "all";
  const at::Tensor rows = mask.to(at::kCPU).unsqueeze(-1) != 0;
  const auto states = [&](std::vector<int64_t> selected) {
    return encoder.Forward({.ids = ids, .mask = mask, .states = std::move(selected)}, rank.context).hidden.cpu();
  };
  const auto compare = [&](const std::string& name, const at::Tensor& actual) {
    const auto it = gold.find(name);
    if (it == gold.end()) return;
    const auto counted = [&](const at::Tensor& x) { return all ? x : at::where(rows, x, 0); };
    report.Add(name, RelativeError(counted(actual), counted(it->second)), test_case.Tolerance("fp32"));
  };
  compare("embeddings", states({0}));
  compare("penultimate", states({-2}));
  const at::Tensor last = states({-1});
  compare("last_hidden_state", last);
  for (const int64_t layer : {1, 9, 27}) {
    if (gold.contains(absl::StrCat("hidden.", layer))) compare(absl::StrCat("hidden.", layer), states({layer}));
  }
  const auto embeds = gold.find("prompt_embeds");
  if (embeds == gold.end()) return;
  if (all) return compare("prompt_embeds", states({9, 18, 27}));
  std::vector<at::Tensor> kept;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const int64_t length = mask[row].sum().item<int64_t>() - kDroppedTokens;
    const at::Tensor tokens = last[row].narrow(0, kDroppedTokens, length);
    kept.push_back(at::constant_pad_nd(tokens, {0, 0, 0, embeds->second.size(1) - length}));
  }
  report.Add("prompt_embeds", RelativeError(at::stack(kept), embeds->second), test_case.Tolerance("fp32"));
}

}  // namespace

absl::StatusOr<Report> RunTokenizer(const Case& test_case) {
  if (test_case.arguments.Find("images") != nullptr) return RunTokenizerOfPictures(test_case);
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
    const auto compare = row.Find("templated") != nullptr ? CompareTemplatedRow : CompareRow;
    RETURN_IF_ERROR(compare(*tokenizer, row, max_length, report));
  }
  return report;
}

absl::StatusOr<Report> RunTextEncoder(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  if (!models::IsTextEncoder(test_case.Text("class"))) return absl::UnimplementedError(test_case.Text("class"));
  if (test_case.arguments.Find("images") != nullptr) return RunTextEncoderOfPictures(test_case);
  if (gold->contains("f64.embeddings")) return RunWideTextEncoder(test_case, *gold);
  OpenedEncoder opened(at::kFloat, test_case.device);
  RETURN_IF_ERROR(opened.Open(test_case, test_case.Path(test_case.Text("folder")) + "/config.json"));
  const models::TextEncoder& encoder = *opened.encoder;
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
  if (test_case.arguments.Find("templated") != nullptr) {
    CompareDecoderStates(test_case, encoder, ids, mask, *gold, report);
    return report;
  }
  if (opened.config.pooled_width > 0) {
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

absl::StatusOr<Report> RunLegacyTextEncoder(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const std::string configs[] = {test_case.Path(test_case.Text("folder")) + "/config.json",
                                 test_case.Path(test_case.file)};
  // Of a pipeline that prepares pictures for the encoder.
  const bool pictures = std::filesystem::exists(test_case.Path(test_case.Text("folder")) + "/../processor") &&
                        models::CanReadPictures(test_case.Text("class"));
  at::Tensor states[2];
  OneRank rank;
  for (size_t i = 0; i < 2; ++i) {
    OpenedEncoder opened(at::kDouble, test_case.device);
    RETURN_IF_ERROR(opened.Open(test_case, configs[i], pictures));
    at::Tensor ids = at::arange(24, at::kLong).unsqueeze(0).to(test_case.device);
    models::TextEncoderInput input{.ids = ids};
    if (pictures) {
      const models::PictureReading& reading = *opened.config.pictures;
      constexpr models::PatchGrid kGrid{.rows = 6, .columns = 4};
      const int64_t features = 3 * reading.frames * reading.patch * reading.patch;
      ids.narrow(1, 5, kGrid.units()).fill_(reading.picture_id);
      const at::Tensor patches = at::cos(at::arange(kGrid.patches() * features, at::kFloat)).view({-1, features});
      input.pictures = {{.patches = patches.to(test_case.device), .grid = kGrid}};
    }
    states[i] = opened.encoder->Forward(input, rank.context).hidden;
  }
  Report report;
  report.Add("last_hidden_state", AbsoluteError(states[1], states[0]), 0);
  return report;
}

}  // namespace tessera::golden

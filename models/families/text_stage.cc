#include "models/families/text_stage.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/macros/status_macros.h"
#include "control/pictures/picture_frames.h"
#include "models/finite.h"
#include "models/loading/load_options.h"
#include "models/text_encoders/picture_processor.h"

namespace tessera::models {
namespace {

constexpr char kProcessor[] = "processor";  // the component that prepares pictures for the text encoder

// Weights that are shared out over ranks do not wait in the host's memory. Of an encoder that is read for each use, the
// products wait there until each is used, so that the device never holds it whole.
WeightShare ShareOfText(const LoadOptions& options) {
  if (options.text_ranks != nullptr) return {.row_ranks = options.text_ranks};
  if (options.placement.text_encoders == control::ComponentPlacement::kStreamed) return {.streamed = true};
  if (options.offload != Offloaded::kAll) return {};
  if (options.placement.text_encoders == control::ComponentPlacement::kUnloaded) return {.offloaded = Offloaded::kAll};
  return {.parked = true, .memory = options.waiting_memory};
}

int64_t Bytes(const std::string& key, const EncodedText& text) {
  int64_t bytes = static_cast<int64_t>(key.size() + sizeof(EncodedText));
  for (const at::Tensor& tensor : {text.hidden, text.pooled}) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  for (const std::string& warning : text.warnings) bytes += static_cast<int64_t>(warning.size());
  return bytes;
}

absl::Status CheckPadding(const Tokenizer& tokenizer, const TextEncoderConfig& encoder, const std::string& component) {
  if (tokenizer.pads_left() && !encoder.takes_left_padding) {
    return absl::InvalidArgumentError(absl::StrCat(
        component, "/tokenizer_config.json: field \"padding_side\" is \"left\"; the valid value is \"right\""));
  }
  if (tokenizer.pad_id() >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(component, "/tokenizer_config.json: there is no \"pad_token\", and prompts are padded; add it"));
}

at::Tensor WithoutRows(const at::Tensor& states, int64_t begin, int64_t count) {
  return at::cat({states.slice(0, 0, begin), states.slice(0, begin + count)});
}

}  // namespace

const EncodedText* PromptCache::Find(const std::string& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return &found->second->text;
}

void PromptCache::Put(const std::string& key, const EncodedText& text) {
  const int64_t bytes = Bytes(key, text);
  if (bytes > max_bytes_ || index_.contains(key)) return;
  while (bytes_ + bytes > max_bytes_) {
    bytes_ -= entries_.back().bytes;
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({.key = key, .text = text, .bytes = bytes});
  index_[key] = entries_.begin();
  bytes_ += bytes;
  written_ += bytes;
}

void PromptCache::Clear() {
  index_.clear();
  entries_.clear();
  bytes_ = 0;
}

absl::StatusOr<TextStageConfig> ReadTextStage(const ModelFolder& folder, const std::string& tokenizer,
                                              const std::string& encoder, std::vector<std::string>& warnings) {
  for (const std::string& component : {encoder, tokenizer}) {
    if (absl::StatusOr<std::string> path = folder.ComponentPath(component); !path.ok()) return path.status();
  }
  TextStageConfig stage{.encoder = encoder};
  const std::string& encoder_class = folder.components().at(encoder).class_name;
  const bool pictures = folder.HasComponent(kProcessor) && CanReadPictures(encoder_class);
  const auto parse = [&](base::ConfigReader& reader) { return ReadTextEncoder(encoder_class, reader, pictures); };
  RETURN_IF_ERROR(ReadConfig(folder, encoder, parse, stage.config, warnings));
  if (stage.config.pictures.has_value()) {
    ASSIGN_OR_RETURN(const std::string path, folder.ComponentPath(kProcessor));
    ASSIGN_OR_RETURN(const PictureProcessor processor, ReadPictureProcessor(path, kProcessor, *stage.config.pictures));
    stage.processor = std::make_shared<const PictureProcessor>(processor);
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> loaded =
      LoadTokenizer(folder.components().at(tokenizer).class_name, *folder.ComponentPath(tokenizer));
  if (!loaded.ok()) return loaded.status();
  stage.tokenizer = *std::move(loaded);
  if (stage.tokenizer->vocabulary_size() > stage.config.vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokenizer, " makes ids up to ", stage.tokenizer->vocabulary_size() - 1, ", and ", encoder,
                     "/config.json has a vocab_size of ", stage.config.vocabulary, "; the two do not belong together"));
  }
  RETURN_IF_ERROR(CheckPadding(*stage.tokenizer, stage.config, tokenizer));
  const int64_t stated = stage.tokenizer->model_max_length();
  const bool is_bounded = stated < std::numeric_limits<int64_t>::max();
  if (is_bounded && stage.config.fills_length && stated > stage.config.positions) {
    return absl::InvalidArgumentError(absl::StrCat(tokenizer, "/tokenizer_config.json: field \"model_max_length\" is ",
                                                   stated, "; valid values are 2 to ", stage.config.positions,
                                                   ", the positions of ", encoder));
  }
  stage.full_length = std::min(stated, stage.config.positions);
  return stage;
}

TextStage::TextStage(const ModelFolder& folder, TextStageConfig config, const LoadOptions& options,
                     std::shared_ptr<PromptCache> cache)
    : config_(std::move(config)),
      device_(options.device),
      encoder_(folder, config_.encoder, config_.config.make, options.dtype, options.device,
               options.placement.text_encoders, ShareOfText(options)),
      ranks_(options.text_ranks),
      cache_(std::move(cache)) {
  if (!options.byte_fallback) config_.tokenizer->UseUnknownToken();
}

// The text comes last, after a NUL byte, which no text contains, so different calls have different keys.
std::string TextStage::KeyOf(const TextCall& call) const {
  return absl::StrCat(config_.encoder, ",", call.max_length, ",", call.plan.Key(), ",", call.field, ",",
                      FactorsOf(call) == nullptr ? "" : call.adapters->key, ",",
                      call.pictures == nullptr ? "" : call.pictures->key, std::string(1, '\0'), call.text);
}

// A text's key has a number in the place of the word.
std::string TextStage::PicturesKey(const TextCall& call) const {
  return absl::StrCat(config_.encoder, ",pictures,", FactorsOf(call) == nullptr ? "" : call.adapters->key, ",",
                      call.pictures->key);
}

// All ranks then find the same states finite, and keep the same texts in their caches, even if their devices round
// differently.
void TextStage::ShareFirstRanksStates(EncodedTokens& states) const {
  for (at::Tensor* const tensor : {&states.hidden, &states.pooled}) {
    if (!tensor->defined()) continue;
    *tensor = tensor->contiguous();
    ranks_->Broadcast(*tensor, 0);
  }
}

absl::StatusOr<PlannedText> TextStage::PlanOf(const TextCall& call) const {
  const int64_t most = config_.config.positions - call.plan.dropped;
  ASSIGN_OR_RETURN(PlannedText text, PlanText(*config_.tokenizer, call.plan, call.text, std::min(call.max_length, most),
                                              call.field, config_.encoder));
  if (call.pictures == nullptr) return text;
  TORCH_CHECK(config_.processor != nullptr && call.plan.padding == TextPadding::kNone,
              "a text with pictures needs an encoder that reads them, and no padding");
  std::vector<int64_t> units;
  for (const control::Frames& picture : call.pictures->pictures) {
    const absl::StatusOr<PatchGrid> grid = config_.processor->GridOf({picture.width, picture.height});
    if (!grid.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("images: a picture", std::string(grid.status().message())));
    }
    units.push_back(grid->units());
  }
  RETURN_IF_ERROR(InsertPictures(text, config_.config.pictures->picture_id, units, call.field));
  if (text.tokens > most) {
    return absl::InvalidArgumentError(absl::StrCat("the ", call.field, " and its pictures have ", text.tokens,
                                                   " tokens; ", config_.encoder, " reads at most ", most));
  }
  return text;
}

absl::StatusOr<std::vector<EncoderPicture>> TextStage::PicturesOf(const TextCall& call, bool with_patches) const {
  std::vector<EncoderPicture> pictures;
  if (call.pictures == nullptr) return pictures;
  for (const control::Frames& picture : call.pictures->pictures) {
    if (!with_patches) {
      ASSIGN_OR_RETURN(pictures.emplace_back().grid, config_.processor->GridOf({picture.width, picture.height}));
      continue;
    }
    ASSIGN_OR_RETURN(const control::Frames resized, config_.processor->Resized(picture));
    EncoderPicture& read = pictures.emplace_back(config_.processor->PatchesOf(resized));
    read.patches = read.patches.to(encoder_.device());
  }
  return pictures;
}

absl::StatusOr<EncodedText> TextStage::Encode(const TextCall& call, const parallel::ForwardContext& context,
                                              bool& cached) {
  const std::string key = KeyOf(call);
  if (const EncodedText* found = cache_->Find(key)) return *found;
  cached = false;

  ASSIGN_OR_RETURN(PlannedText text, PlanOf(call));
  EncodedText encoded{.tokens = text.tokens, .warnings = std::move(text.warnings)};
  if (device_.is_meta()) {
    const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(device_);
    encoded.hidden = at::empty({static_cast<int64_t>(text.ids.size()) - call.plan.dropped,
                                config_.config.width * static_cast<int64_t>(call.plan.states.size())},
                               meta);
    if (config_.config.pooled_width > 0) encoded.pooled = at::empty({config_.config.pooled_width}, meta);
    return encoded;
  }
  const auto row = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).unsqueeze(0).to(encoder_.device());
  };
  TextEncoderInput input{.ids = row(text.ids), .states = call.plan.states};
  if (call.plan.padding == TextPadding::kMasked) input.mask = row(text.mask);
  const EncodedText* const seen = call.pictures == nullptr ? nullptr : cache_->Find(PicturesKey(call));
  if (seen != nullptr) input.picture_tokens = seen->hidden.to(encoder_.device());
  ASSIGN_OR_RETURN(input.pictures, PicturesOf(call, /*with_patches=*/seen == nullptr));
  const parallel::ForwardContext with_adapters{
      .attention = context.attention, .tensor = context.tensor, .world = context.world, .adapters = FactorsOf(call)};
  absl::StatusOr<EncodedTokens> states = encoder_.With([&](const TextEncoder& encoder) {
    input.weights = encoder_.residency().get();
    return encoder.Forward(input, with_adapters);
  });
  if (!states.ok()) return states.status();
  if (ranks_ != nullptr) ShareFirstRanksStates(*states);
  for (const at::Tensor& tensor : {states->hidden, states->pooled}) {
    if (!tensor.defined()) continue;
    RETURN_IF_ERROR(CheckFinite(tensor, absl::StrCat("what ", config_.encoder, " encoded the ", call.field, " as")));
  }
  const at::Tensor hidden = states->hidden.squeeze(0);
  encoded.hidden =
      (call.plan.dropped > 0 ? WithoutRows(hidden, text.dropped_from, call.plan.dropped) : hidden).to(device_);
  if (states->pooled.defined()) encoded.pooled = states->pooled.squeeze(0).to(device_);
  if (states->picture_tokens.defined() && seen == nullptr) {
    cache_->Put(PicturesKey(call), {.hidden = states->picture_tokens.to(device_)});
  }
  cache_->Put(key, encoded);
  return encoded;
}

}  // namespace tessera::models

#include "models/text_encoders/text_encoder.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/status_macros.h"
#include "kernels/ops.h"
#include "models/precision.h"

namespace tessera::models {
namespace {

constexpr TextEncoderEntry kTextEncoders[] = {
    {"T5EncoderModel", ReadT5Encoder},
    {"CLIPTextModel", ReadClipEncoder},
    {"CLIPTextModelWithProjection", ReadProjectedClipEncoder},
    {"BertModel", ReadBertEncoder},
    {"Mistral3ForConditionalGeneration", ReadMistral3Encoder},
    {"Qwen3Model", ReadQwen3Encoder},
    {"Qwen3ForCausalLM", ReadQwen3Encoder},
    {"Qwen2_5_VLForConditionalGeneration", ReadQwen25VlEncoder, ReadQwen25VlWithVision},
};

}  // namespace

bool IsTextEncoder(std::string_view class_name) {
  return std::ranges::find(kTextEncoders, class_name, &TextEncoderEntry::class_name) != std::end(kTextEncoders);
}

bool CanReadPictures(std::string_view class_name) {
  const auto* const entry = std::ranges::find(kTextEncoders, class_name, &TextEncoderEntry::class_name);
  return entry != std::end(kTextEncoders) && entry->read_with_pictures != nullptr;
}

absl::StatusOr<TextEncoderConfig> ReadTextEncoder(const std::string& class_name, base::ConfigReader& reader,
                                                  bool pictures) {
  const auto* const entry = std::ranges::find(kTextEncoders, class_name, &TextEncoderEntry::class_name);
  if (entry == std::end(kTextEncoders)) {
    const auto append_name = [](std::string* out, const TextEncoderEntry& known) { out->append(known.class_name); };
    return absl::InvalidArgumentError(absl::StrCat(reader.name(), ": text encoders of class ", base::Quote(class_name),
                                                   " are not known; known are ",
                                                   absl::StrJoin(kTextEncoders, ", ", append_name)));
  }
  if (pictures && entry->read_with_pictures == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.name(), ": text encoders of class ", base::Quote(class_name), " read no pictures"));
  }
  TextEncoderConfig config = pictures ? entry->read_with_pictures(reader) : entry->read(reader);
  // Fields that the saving library writes into every configuration.
  reader.Ignore({"architectures", "dtype", "model_type", "pad_token_id", "tie_word_embeddings", "torch_dtype",
                 "transformers_version"});
  RETURN_IF_ERROR(reader.status());
  return config;
}

SelectedStates::SelectedStates(const std::vector<int64_t>& states, int64_t layers) : states_(states.size()) {
  for (const int64_t state : states) {
    indices_.push_back(state < 0 ? layers + 1 + state : state);
    TORCH_CHECK(indices_.back() >= 0 && indices_.back() <= layers, "state ", state, " of ", layers, " layers");
  }
}

void SelectedStates::Add(int64_t index, const at::Tensor& state) {
  for (size_t i = 0; i < indices_.size(); ++i) {
    if (indices_[i] == index) states_[i] = state;
  }
}

at::Tensor SelectedStates::Joined() const { return states_.size() == 1 ? states_[0] : at::cat(states_, -1); }

at::Tensor TextAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const TextAttentionOptions& options) {
  // Returns the product of each head of x with the head of y that serves it, [t, ·], using the operator whose sums have
  // the same order for any number of threads.
  const auto by_head = [&](const at::Tensor& x, const at::Tensor& y) {
    const int64_t queries_per_key = x.size(1) / y.size(1);
    std::vector<at::Tensor> products;
    for (int64_t i = 0; i < x.size(0); ++i) {
      for (int64_t h = 0; h < x.size(1); ++h) {
        products.push_back(kernels::LinearProduct(x[i][h], y[i][h / queries_per_key], std::nullopt));
      }
    }
    return at::stack(products).unflatten(0, {x.size(0), x.size(1)});
  };
  const auto heads = [&](const at::Tensor& x) { return x.unflatten(-1, {-1, options.head_dim}).transpose(1, 2); };
  at::Tensor scores = by_head(heads(q), heads(k)).to(AccumulationType(q.scalar_type()));
  if (options.scale != 1) scores = scores * options.scale;
  if (options.bias.defined()) scores = scores + options.bias;
  const at::Tensor weights = at::softmax(scores, -1).to(v.scalar_type());
  return by_head(weights, heads(v).transpose(-1, -2)).transpose(1, 2).flatten(2);
}

at::Tensor CausalBias(const at::Tensor& q) {
  const at::TensorOptions options = q.options().dtype(AccumulationType(q.scalar_type()));
  return at::full({q.size(1), q.size(1)}, -std::numeric_limits<double>::infinity(), options).triu(1);
}

at::Tensor PaddingBias(const at::Tensor& mask, at::ScalarType dtype) {
  const double lowest =
      dtype == at::kDouble ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
  return at::zeros_like(mask, mask.options().dtype(dtype)).masked_fill(mask == 0, lowest).unsqueeze(1).unsqueeze(1);
}

}  // namespace tessera::models

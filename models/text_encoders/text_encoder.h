// TextEncoder is the interface of a text encoder: it maps token ids to hidden states and, for some encoders, one pooled
// vector. Encoders are found by class name; an encoder is its files and one row in text_encoder.cc.
//
// Shapes: b batch, t tokens.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/loading/param_table.h"
#include "models/loading/weight_residency.h"
#include "models/text_encoders/picture_layout.h"
#include "models/text_encoders/text_encoder_config.h"
#include "parallel/forward_context.h"

namespace tessera::models {

// A picture as an encoder reads it.
struct EncoderPicture {
  at::Tensor patches;  // [rows · columns, channels · frames · patch · patch] in fp32, in the order of PatchGrid
  PatchGrid grid;
};

struct TextEncoderInput {
  at::Tensor ids;   // [b, t] int64, each less than the size of the vocabulary
  at::Tensor mask;  // [b, t], 1 for tokens and 0 for padding; undefined if padding is read like text
  // The hidden states to return, side by side along the features: 0 is the embedding, k the output of layer k, and the
  // last one is that of the last layer after the final norm, if the encoder has one. Negative numbers count from the
  // last, which is -1.
  std::vector<int64_t> states = {-1};
  // Brings the weights of each layer, which is a block of the table, while it runs; null if they are in memory.
  WeightResidency* weights = nullptr;
  // The pictures of the text, only for an encoder with PictureReading and b = 1: `ids` has their token once for each
  // unit of each picture.
  std::vector<EncoderPicture> pictures = {};
  // EncodedTokens::picture_tokens of another text with the same pictures, whose patches are then not read; undefined:
  // the tokens are computed.
  at::Tensor picture_tokens = {};
};

struct EncodedTokens {
  at::Tensor hidden;               // [b, t, width · states]
  at::Tensor pooled = {};          // [b, pooled width]; undefined for encoders without one
  at::Tensor picture_tokens = {};  // [units, width]: what the encoder read the pictures as; undefined without pictures
};

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  virtual EncodedTokens Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const = 0;
};

struct TextEncoderEntry {
  std::string_view class_name;  // of model_index.json
  // Reads config.json except for the fields that the saving library writes into every configuration. Errors are
  // collected in the reader.
  TextEncoderConfig (*read)(base::ConfigReader& reader);
  // The same model with the part that reads pictures; null if there is none.
  TextEncoderConfig (*read_with_pictures)(base::ConfigReader& reader) = nullptr;
};

TextEncoderConfig ReadT5Encoder(base::ConfigReader& reader);
TextEncoderConfig ReadClipEncoder(base::ConfigReader& reader);
TextEncoderConfig ReadProjectedClipEncoder(base::ConfigReader& reader);
TextEncoderConfig ReadBertEncoder(base::ConfigReader& reader);
TextEncoderConfig ReadMistral3Encoder(base::ConfigReader& reader);
TextEncoderConfig ReadQwen3Encoder(base::ConfigReader& reader);
TextEncoderConfig ReadQwen25VlEncoder(base::ConfigReader& reader);
TextEncoderConfig ReadQwen25VlWithVision(base::ConfigReader& reader);

bool IsTextEncoder(std::string_view class_name);
// Whether an encoder of this class can also read pictures.
bool CanReadPictures(std::string_view class_name);

// Reads the config.json of an encoder of a class; with `pictures` also of the part that reads pictures, which the class
// must have. Returns InvalidArgument for an unknown class, with the known ones,
// and for an invalid field, with its name, its value and the valid values.
absl::StatusOr<TextEncoderConfig> ReadTextEncoder(const std::string& class_name, base::ConfigReader& reader,
                                                  bool pictures = false);

// Collects the states that an input selects.
class SelectedStates {
 public:
  SelectedStates(const std::vector<int64_t>& states, int64_t layers);

  // Called for every state from 0 to the number of layers. state [b, t, width].
  void Add(int64_t index, const at::Tensor& state);
  int64_t last() const { return *std::ranges::max_element(indices_); }  // of the selected states
  // Returns [b, t, width · states].
  at::Tensor Joined() const;

 private:
  std::vector<int64_t> indices_;
  std::vector<at::Tensor> states_;
};

struct TextAttentionOptions {
  int64_t head_dim = 0;
  double scale = 1;
  at::Tensor bias = {};  // added to the scores; broadcasts to [b, h, t, t]; undefined for none
};

// softmax(q kᵀ · scale + bias) v, with the scores in max(fp32, dtype). q [b, t, h·d]; k and v [b, t, g·d], where each
// of g heads of keys and values serves h/g consecutive heads of queries. Returns [b, t, h·d].
at::Tensor TextAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const TextAttentionOptions& options);

// Returns the bias [t, t] of causal attention for q [b, t, h·d], in max(fp32, dtype): a token reads itself and the
// tokens before it.
at::Tensor CausalBias(const at::Tensor& q);

// Returns the bias [b, 1, 1, t] that excludes padding: 0 for tokens, the lowest number of `dtype` for padding. mask [b,
// t].
at::Tensor PaddingBias(const at::Tensor& mask, at::ScalarType dtype);

}  // namespace tessera::models

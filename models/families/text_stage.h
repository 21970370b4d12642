// TextStage encodes a text with one encoder: it has a tokenizer, the encoder, and a cache of texts that were encoded
// before and of what the encoder read their pictures as, which texts with the same pictures share.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/adapter_set.h"
#include "models/loading/component.h"
#include "models/text_encoders/prompt_pictures.h"
#include "models/text_encoders/text_encoder.h"
#include "models/text_encoders/text_plan.h"
#include "models/tokenizers/tokenizer.h"

namespace tessera::models {

struct LoadOptions;
struct PictureProcessor;

// The encoding of a text. Tensors are on the model's device.
struct EncodedText {
  at::Tensor hidden;                  // [t, width]
  at::Tensor pooled;                  // [pooled width], or undefined
  int64_t tokens = 0;                 // without padding
  std::vector<std::string> warnings;  // which text was truncated
};

// Holds the most recently used encoded texts, up to a bound in bytes.
class PromptCache {
 public:
  explicit PromptCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns null if the key is not in the cache. Valid until the next Put.
  const EncodedText* Find(const std::string& key);
  // Evicts the least recently used entries. A text that is larger than the bound is not kept.
  void Put(const std::string& key, const EncodedText& text);
  void Clear();

  int64_t bytes() const { return bytes_; }
  int64_t max_bytes() const { return max_bytes_; }
  int64_t written() const { return written_; }  // total bytes of all texts that were ever kept

 private:
  struct Entry {
    std::string key;
    EncodedText text;
    int64_t bytes = 0;
  };
  std::list<Entry> entries_;  // most recent first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
  int64_t max_bytes_;
  int64_t bytes_ = 0;
  int64_t written_ = 0;
};

struct TextCall {
  std::string text;        // valid UTF-8
  std::string field;       // field of the request for messages: "prompt"
  int64_t max_length = 0;  // tokens, without those that the plan drops
  TextPlan plan = {};
  // That the text holds, in the order of their tokens; only for an encoder with a processor, and a plan without
  // padding.
  SharedPromptPictures pictures = nullptr;
  SharedAdapters adapters = nullptr;  // the encoder uses its part of it
};

// The configuration and tokenizer of an encoder: everything that is known without its weights.
struct TextStageConfig {
  std::string encoder;  // component
  TextEncoderConfig config;
  std::shared_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const PictureProcessor> processor;  // null if the encoder reads no pictures
  int64_t full_length = 0;  // in tokens: the tokenizer's model_max_length, at most the encoder's positions
};

// Reads `encoder`'s configuration and `tokenizer`'s files. If the folder has a component "processor" and the encoder's
// class can read pictures, it does, and the processor's files are read too. Also returns InvalidArgument if the
// tokenizer makes ids that the encoder has no embedding for, names no padding token, or pads on the left or has a
// model_max_length greater than the encoder's positions against the encoder's configuration.
absl::StatusOr<TextStageConfig> ReadTextStage(const ModelFolder& folder, const std::string& tokenizer,
                                              const std::string& encoder, std::vector<std::string>& warnings);

// Used by one thread at a time.
class TextStage {
 public:
  TextStage(const ModelFolder& folder, TextStageConfig config, const LoadOptions& options,
            std::shared_ptr<PromptCache> cache);

  absl::Status Open() { return encoder_.Open(); }
  const TextEncoderConfig& config() const { return config_.config; }
  int64_t full_length() const { return config_.full_length; }
  int64_t weight_bytes() const { return encoder_.weight_bytes(); }

  const std::string& component() const { return config_.encoder; }
  bool takes_adapters() const { return config_.config.takes_adapters; }
  std::vector<ProductSpec> Products() const { return encoder_.Products({}); }

  // While `held` is true, an encoder that is read for each use stays in memory for the next one.
  void Hold(bool held) { encoder_.Hold(held); }
  bool IsCached(const TextCall& call) { return cache_->Find(KeyOf(call)) != nullptr; }

  // Sets `cached` to false if the encoder had to run. Collective if ranks share the encoder out: each has a cache, and
  // the calls are the same on all of them. On the meta device it does not run: the states have sizes only.
  absl::StatusOr<EncodedText> Encode(const TextCall& call, const parallel::ForwardContext& context, bool& cached);

 private:
  // Returns the factors for this encoder's products; null if there are none.
  const parallel::AdapterFactors* FactorsOf(const TextCall& call) const {
    return AdaptersOf(call.adapters, config_.encoder);
  }
  std::string KeyOf(const TextCall& call) const;
  std::string PicturesKey(const TextCall& call) const;  // of the pictures alone
  // Returns the text of a call with the tokens of its pictures.
  absl::StatusOr<PlannedText> PlanOf(const TextCall& call) const;
  // Returns the pictures of a call as the encoder reads them: without their patches if `with_patches` is false.
  absl::StatusOr<std::vector<EncoderPicture>> PicturesOf(const TextCall& call, bool with_patches) const;
  void ShareFirstRanksStates(EncodedTokens& states) const;

  TextStageConfig config_;
  at::Device device_;  // of the result
  Component<TextEncoder> encoder_;
  parallel::Communicator* ranks_;  // that share the encoder out; null if its weights are in memory
  std::shared_ptr<PromptCache> cache_;
};

}  // namespace tessera::models

// From one text to the states of one encoder: a tokenizer, the encoder it belongs to, and a cache of what was encoded
// before.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "models/families/family.h"
#include "models/loading/component.h"
#include "models/text_encoders/text_encoder.h"
#include "models/tokenizers/tokenizer.h"

namespace tessera::models {

// What is left of a text once it has been encoded. Tensors are on the model's device.
struct EncodedText {
  at::Tensor hidden;                  // [t, width]
  at::Tensor pooled;                  // [pooled width], or undefined
  int64_t tokens = 0;                 // without padding
  std::vector<std::string> warnings;  // what was cut off
};

// Encoded texts, the most recently used ones, within a bound of bytes.
class PromptCache {
 public:
  explicit PromptCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Null if it is not there. Valid until the next Put.
  const EncodedText* Find(const std::string& key);
  // Drops what was not used for longest; keeps nothing that alone is over the bound.
  void Put(const std::string& key, const EncodedText& text);

  int64_t bytes() const { return bytes_; }
  int64_t max_bytes() const { return max_bytes_; }
  int64_t written() const { return written_; }  // bytes of all that was ever kept

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

// How a text is brought to the encoder's length.
enum class TextPadding {
  kNone,      // not at all: the states of real tokens do not depend on padding that is masked out
  kMasked,    // to the full length, and masked out
  kAttended,  // to the full length, and read like text
};

struct TextCall {
  std::string text;        // valid UTF-8
  std::string field;       // of the request, for messages: "prompt"
  int64_t max_length = 0;  // tokens
  TextPadding padding = TextPadding::kNone;
  int64_t layers_skipped = 0;         // as TextEncoderInput has it
  SharedAdapters adapters = nullptr;  // the encoder runs with its part of it
};

// The configuration and tokenizer of an encoder: all that can be known of it without its weights.
struct TextStageConfig {
  std::string encoder;  // component
  TextEncoderConfig config;
  std::shared_ptr<Tokenizer> tokenizer;
  int64_t full_length = 0;  // tokens: the tokenizer's model_max_length, at most the encoder's positions

  // The reference adapts CLIP alone.
  bool takes_adapters() const { return std::holds_alternative<ClipConfig>(config.config); }
};

// Reads `encoder`'s configuration and `tokenizer`'s files. InvalidArgument also where the tokenizer makes ids that the
// encoder has no embedding for, names no padding token or pads on the left, and where CLIP's has a model_max_length
// beyond the encoder's positions.
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
  bool takes_adapters() const { return config_.takes_adapters(); }
  std::vector<ProductSpec> Products() const { return encoder_.Products({}); }

  // While it is held, an encoder that is read for each use stays for the next one.
  void Hold(bool held) { encoder_.Hold(held); }
  bool IsCached(const TextCall& call) { return cache_->Find(KeyOf(call)) != nullptr; }

  // `cached` becomes false if the encoder had to run.
  absl::StatusOr<EncodedText> Encode(const TextCall& call, const parallel::ForwardContext& context, bool& cached);

 private:
  // What lies beside this encoder's products; null: nothing does.
  const parallel::AdapterFactors* FactorsOf(const TextCall& call) const {
    return AdaptersOf(call.adapters, config_.encoder);
  }
  std::string KeyOf(const TextCall& call) const;

  TextStageConfig config_;
  at::Device device_;  // where the result goes
  Component<TextEncoder> encoder_;
  std::shared_ptr<PromptCache> cache_;
};

}  // namespace tessera::models

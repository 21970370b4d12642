// ComponentFiles names components that a user gives in addition to a model: text encoders, an autoencoder, a tokenizer.
// They replace those of the model's folder, or complete a model that is one file. It also says which component the
// model runs without. Plain values, free of LibTorch.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "base/fields/fields.h"

namespace tessera::control {

struct ComponentFiles {
  std::vector<std::string> text_encoders;  // files or folders, in any order: each is recognised by its contents
  std::string autoencoder;                 // a file or folder; empty: the model's own
  std::string tokenizer;                   // a folder with a tokenizer, or with those of several components; or empty
  bool without_t5 = false;                 // only for Stable Diffusion 3: text_encoder_3 is not used

  bool empty() const { return text_encoders.empty() && autoencoder.empty() && tokenizer.empty() && !without_t5; }
  bool operator==(const ComponentFiles&) const = default;
};

inline constexpr size_t kMaxTextEncoderFiles = 8;

// A field is a key of a group in the server's configuration and, with "--" before it, an option of the command line.
constexpr auto FieldsOf(const ComponentFiles*) {
  using base::Field;
  using C = ComponentFiles;
  return std::tuple(
      Field("text_encoder", &C::text_encoders, base::List<base::Text>{base::kPath, kMaxTextEncoderFiles},
            "File or folder of a text encoder of the model; may be given several times"),
      Field("vae", &C::autoencoder, base::kPath, "File or folder of the model's autoencoder"),
      Field("tokenizer", &C::tokenizer, base::kPath, "Folder of the model's tokenizer, or of its tokenizers"),
      Field("without_t5", &C::without_t5, "Run Stable Diffusion 3 without T5, the largest of its text encoders"));
}

}  // namespace tessera::control

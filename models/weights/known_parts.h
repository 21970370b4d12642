// The parts of models that single files hold, recognised by their tensors' names, as tables. LibTorch-free.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "models/weights/file_kind.h"

namespace tessera::models {

// The class of a CLIP under the names of llama.cpp's old converter (clip.cpp), which are not read.
inline constexpr std::string_view kLlamaCppClipClass = "CLIP under llama.cpp's names";

// A part has a tensor that begins with each of the marks; empty marks are always there. The first row that matches a
// file's names applies.
struct KnownPart {
  PartRole role = PartRole::kTransformer;
  std::string_view class_name;  // empty: of a family that is not run
  std::string_view family;
  NameForm form = NameForm::kOriginal;
  std::array<std::string_view, 3> marks = {};
  std::string_view other_form = {};  // a mark of diffusers' names of the same part, if these differ from the authors'
};
extern const std::span<const KnownPart> kKnownParts;

// Returns the beginning of a tensor's name that is the prefix of a component: "model.diffusion_model.",
// "text_encoders.clip_l.transformer.", or an empty text.
std::string_view ComponentPrefix(std::string_view name);

// Whether a tensor outside all parts has no effect: "logit_scale" of a text encoder.
bool IsWithoutEffect(std::string_view prefix, std::string_view name);

// Whether files of that general.architecture hold a part that is read. Files without one are read by their names.
bool IsReadArchitecture(std::string_view architecture);

// A file in fp8 that can be used in place of one whose form is not read.
struct Fp8File {
  std::string_view family, repository, file;  // on the hub
};
const Fp8File* Fp8FileOf(std::string_view family);  // null: none is known

}  // namespace tessera::models

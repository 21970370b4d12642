#include "server/metadata/fitted_parameters.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/status_macros.h"
#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"

namespace tessera::server {
namespace {

// Cuts the text to at most `bytes` without splitting a character.
bool Shorten(std::string& text, size_t bytes) {
  if (text.size() <= bytes) return false;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  text.resize(bytes);
  return true;
}

// Cuts each prompt to at most `bytes`.
ImageParameters Shortened(ImageParameters parameters, size_t bytes) {
  std::vector<std::string> names;
  if (Shorten(parameters.prompt, bytes)) names.emplace_back("prompt");
  if (parameters.negative_prompt.has_value() && Shorten(*parameters.negative_prompt, bytes)) {
    names.emplace_back("negative prompt");
  }
  if (!names.empty()) parameters.extra[kShortenedKey] = absl::StrJoin(names, " and ");
  return parameters;
}

absl::StatusOr<std::string> EncodableText(const ImageParameters& parameters, ImageFormat format) {
  ASSIGN_OR_RETURN(std::string text, FormatParameters(parameters));
  RETURN_IF_ERROR(CheckEncodable(format, parameters.width, parameters.height, text));
  return text;
}

}  // namespace

absl::StatusOr<FittedParameters> FitParameters(const ImageParameters& parameters, ImageFormat format) {
  absl::StatusOr<std::string> whole = EncodableText(parameters, format);
  if (whole.ok()) return FittedParameters{.text = *std::move(whole)};
  ASSIGN_OR_RETURN(std::string best, EncodableText(Shortened(parameters, 0), format));
  size_t fits = 0;
  size_t too_long = std::max(parameters.prompt.size(), parameters.negative_prompt.value_or("").size());
  while (too_long - fits > 1) {
    const size_t middle = fits + (too_long - fits) / 2;
    if (absl::StatusOr<std::string> text = EncodableText(Shortened(parameters, middle), format); text.ok()) {
      best = *std::move(text);
      fits = middle;
    } else {
      too_long = middle;
    }
  }
  const ImageParameters shown = Shortened(parameters, fits);
  return FittedParameters{
      .text = std::move(best),
      .warnings = {
          absl::StrCat("the file carries its parameters with a shortened ", shown.extra.at(kShortenedKey),
                       " of at most ", fits, " bytes: ", std::string(ImageFormatName(format)),
                       " has no room for more, and the image cannot be made again from the file; use png or webp")}};
}

}  // namespace tessera::server

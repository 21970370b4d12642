// PictureUse names a picture that a job begins from, or its mask. Plain values, free of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "base/fields/fields.h"

namespace tessera::control {

struct PictureUse {
  std::string digest;  // SHA-256 of the stored file, an RGB picture without metadata; 64 hexadecimal digits
  int32_t width = 0, height = 0;
  // Absolute path where the workers find the file with that digest. Empty in stored jobs; it is filled in when the job
  // starts.
  std::string file;

  bool operator==(const PictureUse&) const = default;
};

inline constexpr size_t kMaxPictures = 16;  // of one job
inline constexpr int32_t kMaxStoredSide = 16384;
inline constexpr base::Number kStrengths = {0, 1};

constexpr auto FieldsOf(const PictureUse*) {
  using base::Field, base::Integer;
  using P = PictureUse;
  return std::tuple(Field("digest", &P::digest, base::Content()), Field("width", &P::width, Integer{1, kMaxStoredSide}),
                    Field("height", &P::height, Integer{1, kMaxStoredSide}),
                    Field("file", &P::file, base::Text{.most_bytes = 4096, .is_path = true}));
}

// Checks that a path is absolute.
absl::Status CheckRules(const PictureUse& picture);

}  // namespace tessera::control

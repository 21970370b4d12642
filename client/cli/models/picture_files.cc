#include "client/cli/models/picture_files.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/kept_secret.h"
#include "base/files/sha256.h"
#include "base/files/user_folders.h"
#include "base/macros/status_macros.h"
#include "client/cli/option_text.h"
#include "control/pictures/picture.h"
#include "control/pictures/picture_frames.h"
#include "control/pictures/picture_input.h"
#include "server/pictures/decode_picture.h"
#include "server/pictures/picture_pixels.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

// Creates a folder that only this user can enter.
absl::StatusOr<std::string> MakeFolderIn(const std::string& folder) {
  std::error_code error;
  const fs::path parent = folder.empty() ? fs::temp_directory_path(error) : fs::absolute(folder, error);
  std::string name = (parent / "tessera-pictures-XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("no folder for pictures can be made in ", parent.string()));
  }
  return name;
}

absl::StatusOr<control::Frames> ReadFrames(const std::string& path, const char* option) {
  const auto failed = [option](const absl::Status& status, const std::string& file) {
    return absl::Status(status.code(), absl::StrCat(option, ": ", file, std::string(status.message())));
  };
  const absl::StatusOr<std::string> bytes = control::ReadPictureFile(path);
  if (!bytes.ok()) return failed(bytes.status(), "");
  absl::StatusOr<server::DecodedPicture> decoded = server::DecodePicture(*bytes, {});
  if (!decoded.ok()) return failed(decoded.status(), path + ": ");
  return std::move(decoded->frames);
}

}  // namespace

void AddPictureOptions(CLI::App& app, PictureOptions& options) {
  BeginGroup(app, "Pictures");
  AddTexts(app,
           {"--image", "Picture that the image begins from or, with FLUX.1 Kontext and FLUX.2, is made after", "FILE"},
           options.images);
  AddText(
      app,
      {"--mask", "Picture that is transparent, or without transparency white, where the image is to change", "FILE"},
      options.mask);
  AddText(
      app,
      {"--strength",
       "How much of the picture changes, above 0 and up to 1: the part of the steps that is run (default: 0.6, or 1 "
       "for FLUX.1 Fill and Kontext and for FLUX.2, with a mask 0.8)",
       "X"},
      options.strength);
}

std::string PictureKey() { return base::KeptSecret(base::UserDataFolder() + "/picture-key"); }

PictureFiles::~PictureFiles() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

absl::StatusOr<GivenPictures> PictureFiles::Read(const PictureOptions& options, const control::PictureRules& model) {
  GivenPictures given;
  for (const std::string& path : options.images) {
    ASSIGN_OR_RETURN(control::PictureUse image, Add(path, options_.image));
    given.images.push_back(std::move(image));
  }
  if (!options.mask.empty()) {
    ASSIGN_OR_RETURN(control::PictureUse mask, AddMask(options.mask));
    given.mask.push_back(std::move(mask));
  }
  if (!options.strength.empty()) {
    ASSIGN_OR_RETURN(given.strength, ParseNumber("strength", options.strength));
    RETURN_IF_ERROR(base::CheckValue("strength", std::nullopt, given.strength, control::kStrengths));
  } else if (!given.images.empty() && control::BeginsFromPicture(model, !given.mask.empty())) {
    given.strength = model.usual_strength;
  }
  return given;
}

absl::StatusOr<control::PictureUse> PictureFiles::Add(const std::string& path, const char* option) {
  ASSIGN_OR_RETURN(control::Frames frames, ReadFrames(path, option));
  return Store(server::OnWhite(std::move(frames)));
}

absl::StatusOr<control::PictureUse> PictureFiles::AddMask(const std::string& path) {
  ASSIGN_OR_RETURN(control::Frames frames, ReadFrames(path, options_.mask));
  return Store(frames.channels == 4 ? server::MaskOfAlpha(std::move(frames)) : std::move(frames));
}

absl::StatusOr<control::PictureUse> PictureFiles::Store(const control::Frames& picture) {
  if (folder_.empty()) {
    ASSIGN_OR_RETURN(folder_, MakeFolderIn(options_.parent));
  }
  ASSIGN_OR_RETURN(const std::string bytes, server::EncodeStoredPicture(picture));
  const std::string digest = absl::BytesToHexString(base::Sha256Of(bytes));
  const std::string file = absl::StrCat(folder_, "/", digest, ".png");
  RETURN_IF_ERROR(base::WriteFileAtomically(file, bytes, {.owner_only = true}));
  return control::PictureUse{.digest = digest, .width = picture.width, .height = picture.height, .file = file};
}

}  // namespace tessera::client

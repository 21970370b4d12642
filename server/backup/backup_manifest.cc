#include "server/backup/backup_manifest.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "server/jobs/data_folder.h"

namespace tessera::server {
namespace {

constexpr int64_t kFormat = 1;
constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxHeadBytes = 4096;
constexpr absl::string_view kEnd = "end ";

absl::Status Damaged() { return absl::InvalidArgumentError("the archive is damaged: its manifest is invalid"); }

// Returns the bytes before the last line; nullopt unless that line has their digest.
std::optional<std::string_view> Checked(std::string_view text) {
  constexpr size_t kLastLine = kEnd.size() + 2 * base::kSha256Bytes + 1;
  if (text.size() < kLastLine || !text.ends_with('\n')) return std::nullopt;
  const std::string_view body = text.substr(0, text.size() - kLastLine);
  base::Sha256 digest;
  digest.Update(body);
  if (text.substr(body.size()) != absl::StrCat(kEnd, digest.Finish(), "\n")) return std::nullopt;
  return body;
}

absl::StatusOr<BackupManifest> ParseHead(std::string_view line) {
  ASSIGN_OR_RETURN(const base::Json head, base::ParseJson(line, kManifestName, kMaxHeadBytes));
  const auto number = [&](std::string_view key) -> std::optional<int64_t> {
    const base::Json* value = head.Find(key);
    return value == nullptr ? std::nullopt : value->AsInt();
  };
  const std::optional<int64_t> format = number("format");
  if (!format) return Damaged();
  const base::Json* program = head.Find("program");
  const std::string* name = program == nullptr ? nullptr : program->AsString();
  if (*format > kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("the backup has format ", *format, "; this program reads formats up to ", kFormat));
  }
  const std::optional<int64_t> schema = number("schema"), created = number("created"), lost = number("lost_images");
  if (*format != kFormat || name == nullptr || !schema || *schema < 0 || !created || !lost) return Damaged();
  return BackupManifest{.program = *name, .schema = *schema, .created_s = *created, .lost_images = *lost};
}

}  // namespace

std::string ManifestText(const BackupManifest& manifest) {
  base::JsonWriter head;
  head.BeginObject().Key("format").Int(kFormat).Key("program").String(manifest.program);
  head.Key("schema").Int(manifest.schema).Key("created").Int(manifest.created_s);
  head.Key("lost_images").Int(manifest.lost_images).EndObject();
  std::string text = head.text() + "\n";
  for (const auto& [name, file] : manifest.files) absl::StrAppend(&text, file.sha256, " ", file.bytes, " ", name, "\n");
  base::Sha256 digest;
  digest.Update(text);
  absl::StrAppend(&text, kEnd, digest.Finish(), "\n");
  return text;
}

absl::StatusOr<BackupManifest> ParseManifest(std::string_view text) {
  const std::optional<std::string_view> body = Checked(text);
  if (!body || !body->ends_with('\n')) return Damaged();
  std::string_view rest = *body;
  const auto next_line = [&rest] {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    return line;
  };
  absl::StatusOr<BackupManifest> manifest = ParseHead(next_line());
  if (!manifest.ok()) return absl::IsFailedPrecondition(manifest.status()) ? manifest.status() : Damaged();
  while (!rest.empty()) {
    const std::vector<std::string> parts = absl::StrSplit(std::string(next_line()), absl::MaxSplits(' ', 2));
    BackedUpFile file;
    if (parts.size() != 3 || !base::IsSha256Text(parts[0]) || !absl::SimpleAtoi(parts[1], &file.bytes))
      return Damaged();
    RETURN_IF_ERROR(CheckBackedUpName(parts[2]));
    file.sha256 = parts[0];
    if (!manifest->files.emplace(parts[2], file).second) return Damaged();
  }
  return manifest;
}

absl::Status CheckBackedUpName(std::string_view name) {
  if (name == kJobsFile) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(std::string(name), '/');
  const auto is_valid = [](std::string_view part) {
    const auto is_printable = [](char c) { return c > ' ' && c < 0x7f; };
    return base::IsPlainFileName(part) && part[0] != '.' && std::ranges::all_of(part, is_printable);
  };
  if (name.size() <= kMaxNameBytes && parts.size() >= 2 &&
      std::ranges::find(kKeptFolders, parts[0]) != kKeptFolders.end() && std::ranges::all_of(parts, is_valid)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the archive has an entry that is no part of a backup: ", base::Quote(name)));
}

}  // namespace tessera::server

#include "client/cli/pull/hub_listing.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/text/utf8.h"

namespace tessera::client {
namespace {

constexpr char kListingName[] = "the list of files";
constexpr size_t kMaxListedFiles = 100'000;
constexpr size_t kMaxPathBytes = 1024, kMaxNameBytes = 200, kMaxPathParts = 16, kMaxRevisionBytes = 256;
constexpr int64_t kMaxFileBytes = int64_t{1} << 44;

absl::Status BadListing(const std::string& problem) {
  return absl::FailedPreconditionError(absl::StrCat(kListingName, " cannot be used: ", problem));
}

bool IsSha1Text(std::string_view text) {
  return text.size() == 40 &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string TextOf(const base::Json* value) {
  const std::string* text = value == nullptr ? nullptr : value->AsString();
  return text == nullptr ? "" : *text;
}

// A path of plain names that cannot lead out of a folder, nor hide in it.
bool IsPlainPath(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes || base::ReplaceInvalidUtf8({path.data(), path.size()}) != path)
    return false;
  const std::vector<std::string> parts = absl::StrSplit(std::string(path), '/');
  return parts.size() <= kMaxPathParts && std::ranges::all_of(parts, [](const std::string& part) {
           const bool is_printable = std::ranges::none_of(
               part, [](char c) { return c == '\\' || absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
           return base::IsPlainFileName(part) && part.size() <= kMaxNameBytes && is_printable;
         });
}

// `digest_key` and `blob_key` are the names that this answer has for the two digests.
absl::StatusOr<HubFile> ParseFile(const base::Json& entry, const std::string& path, const char* digest_key,
                                  const char* blob_key) {
  HubFile file = {.path = path};
  const base::Json* lfs = entry.Find("lfs");
  const base::Json* size = entry.Find("size");
  if (lfs != nullptr && lfs->is_object()) {
    file.sha256 = TextOf(lfs->Find(digest_key));
    if (!base::IsSha256Text(file.sha256))
      return BadListing(absl::StrCat("the SHA-256 of ", base::QuotedValue(path), " is malformed"));
    if (lfs->Find("size") != nullptr) size = lfs->Find("size");
  } else {
    file.git_sha1 = TextOf(entry.Find(blob_key));
    if (!IsSha1Text(file.git_sha1))
      return BadListing(absl::StrCat("the SHA-1 of ", base::QuotedValue(path), " is malformed"));
  }
  const std::optional<int64_t> bytes = size == nullptr ? std::nullopt : size->AsInt();
  if (!bytes || *bytes < 0 || *bytes > kMaxFileBytes) {
    return BadListing(absl::StrCat("the size of ", base::QuotedValue(path), " is malformed"));
  }
  file.size = static_cast<uint64_t>(*bytes);
  return file;
}

std::string LicenceOf(const base::Json& repository) {
  const base::Json* card = repository.Find("cardData");
  std::string licence = card == nullptr ? "" : TextOf(card->Find("license"));
  if (licence == "other" && card != nullptr) {
    if (const std::string name = TextOf(card->Find("license_name")); !name.empty()) licence = name;
  }
  const base::Json* tags = repository.Find("tags");
  for (const base::Json& tag : tags == nullptr ? std::span<const base::Json>() : tags->items()) {
    constexpr std::string_view kPrefix = "license:";
    if (licence.empty() && TextOf(&tag).starts_with(kPrefix)) licence = TextOf(&tag).substr(kPrefix.size());
  }
  return licence;
}

}  // namespace

bool IsHubCommit(std::string_view text) { return IsSha1Text(text); }

absl::Status CheckRevision(std::string_view revision) {
  if (revision.size() <= kMaxRevisionBytes && IsPlainPath(revision)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("revision is ", base::QuotedValue(std::string(revision)),
                                                 "; valid is the name of a branch or tag, or a commit"));
}

absl::Status CheckFiles(const std::vector<HubFile>& files) {
  if (files.size() > kMaxListedFiles) return BadListing(absl::StrCat("it has more than ", kMaxListedFiles, " files"));
  std::set<std::string_view> paths;
  for (const HubFile& file : files) {
    if (!IsPlainPath(file.path)) {
      return BadListing(absl::StrCat("it names a file ", base::QuotedValue(file.path),
                                     ", which is no relative path of plain names; nothing of this repository is used"));
    }
    if (!paths.insert(file.path).second) {
      return BadListing(absl::StrCat("it names the file ", base::QuotedValue(file.path), " twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HubListing> ParseRepository(std::string_view json) {
  ASSIGN_OR_RETURN(const base::Json repository, base::ParseJson(json, kListingName));
  HubListing listing = {.commit = TextOf(repository.Find("sha")), .licence = LicenceOf(repository)};
  if (!IsHubCommit(listing.commit)) return BadListing("it does not name the commit");
  if (const base::Json* gated = repository.Find("gated")) {
    listing.gated = gated->AsBool().value_or(gated->AsString() != nullptr);
  }
  const base::Json* siblings = repository.Find("siblings");
  if (siblings == nullptr || !siblings->is_array()) return BadListing("it has no files");
  for (const base::Json& entry : siblings->items()) {
    const std::string path = TextOf(entry.Find("rfilename"));
    if (entry.Find("size") == nullptr) {
      listing.has_sizes = false;
      listing.files.push_back({.path = path});
      continue;
    }
    ASSIGN_OR_RETURN(HubFile file, ParseFile(entry, path, "sha256", "blobId"));
    listing.files.push_back(std::move(file));
  }
  RETURN_IF_ERROR(CheckFiles(listing.files));
  return listing;
}

absl::StatusOr<std::vector<HubFile>> ParseTree(std::string_view json) {
  ASSIGN_OR_RETURN(const base::Json tree, base::ParseJson(json, kListingName));
  if (!tree.is_array()) return BadListing("it is no list");
  std::vector<HubFile> files;
  for (const base::Json& entry : tree.items()) {
    const std::string type = TextOf(entry.Find("type")), path = TextOf(entry.Find("path"));
    if (type == "directory") continue;
    if (type != "file") return BadListing(absl::StrCat(base::QuotedValue(path), " is neither a file nor a folder"));
    ASSIGN_OR_RETURN(HubFile file, ParseFile(entry, path, "oid", "oid"));
    files.push_back(std::move(file));
  }
  RETURN_IF_ERROR(CheckFiles(files));
  return files;
}

}  // namespace tessera::client

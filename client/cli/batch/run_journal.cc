#include "client/cli/batch/run_journal.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <exception>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files/sha256.h"
#include "base/json/plain_json.h"

namespace tessera::client {
namespace {

namespace json = boost::json;

constexpr int64_t kImagesInAFolder = 1000;
constexpr std::array<absl::string_view, 3> kStates = {"done", "failed", "lost"};  // by RunState

std::string EndingOf(server::ImageFormat format) {
  if (format == server::ImageFormat::kJpeg) return "jpg";
  return absl::AsciiStrToLower(std::string(server::ImageFormatName(format)));
}

// `times`: include the values that differ from run to run.
json::object JsonOf(const RunEntry& entry, bool times) {
  json::object line = {{"index", entry.index}, {"item", entry.item_digest}};
  if (!entry.custom_id.empty()) line["custom_id"] = entry.custom_id;
  line["status"] = std::string(kStates[static_cast<size_t>(entry.state())]);
  if (!entry.error.ok()) {
    line["error"] = {{"code", static_cast<int>(entry.error.code())}, {"message", std::string(entry.error.message())}};
  }
  json::array images;
  for (const RunImage& image : entry.images) {
    images.push_back({{"file", image.file},
                      {"seed", image.seed},
                      {"width", image.width},
                      {"height", image.height},
                      {"bytes", image.bytes},
                      {"sha256", image.digest}});
  }
  line["images"] = std::move(images);
  if (!times) return line;
  if (entry.attempt > 0) line["attempt"] = entry.attempt;
  line["seconds"] = entry.seconds;
  return line;
}

// Whether these are the images of a done item and have its file names.
bool AreImagesOf(const RunEntry& entry) {
  const auto images = static_cast<int32_t>(entry.images.size());
  for (int32_t i = 0; i < images; ++i) {
    const RunImage& image = entry.images[static_cast<size_t>(i)];
    const absl::StatusOr<server::ImageFormat> format = server::FormatFromPath(image.file);
    if (!format.ok() || image.file != RunImageName(entry.index, i, images, *format) ||
        !base::IsSha256Text(image.digest) || image.width < 1 || image.height < 1) {
      return false;
    }
  }
  return (entry.state() == RunState::kDone) == (images > 0);
}

}  // namespace

std::string RunImageName(int64_t item, int32_t image, int32_t images, server::ImageFormat format) {
  return absl::StrFormat("images/%03d/%06d%s.%s", item / kImagesInAFolder, item,
                         images > 1 ? absl::StrCat("-", image) : "", EndingOf(format));
}

std::string JournalLine(const RunEntry& entry) { return base::PlainJson(JsonOf(entry, /*times=*/true)) + "\n"; }
std::string ManifestLine(const RunEntry& entry) { return base::PlainJson(JsonOf(entry, /*times=*/false)) + "\n"; }

std::optional<RunEntry> ReadJournalLine(const std::string& text) {
  json::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) return std::nullopt;
  try {
    const json::object& line = value.get_object();
    RunEntry entry = {.index = line.at("index").to_number<int64_t>(),
                      .item_digest = std::string(line.at("item").as_string()),
                      .seconds = line.at("seconds").to_number<double>()};
    if (const json::value* id = line.if_contains("custom_id")) entry.custom_id = std::string(id->as_string());
    if (const json::value* attempt = line.if_contains("attempt")) entry.attempt = attempt->to_number<int64_t>();
    const json::string& status = line.at("status").as_string();
    const auto* state = std::ranges::find(kStates, absl::string_view(status.data(), status.size()));
    if (state == kStates.end()) return std::nullopt;
    entry.lost = *state == "lost";
    if (*state == "failed") {
      const json::object& failure = line.at("error").as_object();
      entry.error = absl::Status(static_cast<absl::StatusCode>(failure.at("code").to_number<int>()),
                                 std::string(failure.at("message").as_string()));
      if (entry.error.ok()) return std::nullopt;
    }
    for (const json::value& of : line.at("images").as_array()) {
      const json::object& image = of.as_object();
      entry.images.push_back({.file = std::string(image.at("file").as_string()),
                              .seed = image.at("seed").to_number<uint64_t>(),
                              .width = image.at("width").to_number<int32_t>(),
                              .height = image.at("height").to_number<int32_t>(),
                              .bytes = image.at("bytes").to_number<uint64_t>(),
                              .digest = std::string(image.at("sha256").as_string())});
    }
    if (entry.index < 0 || entry.attempt < 0 || !base::IsSha256Text(entry.item_digest) || !AreImagesOf(entry)) {
      return std::nullopt;
    }
    return entry;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void AddEntry(RunEntry entry, std::map<int64_t, RunEntry>& entries) {
  // Two lines of one attempt come from two processes that made the same item, or from an item that was lost afterwards.
  const auto rank = [](const RunEntry& of) {
    return of.state() == RunState::kLost ? 2 : of.state() == RunState::kDone ? 1 : 0;
  };
  const auto known = entries.find(entry.index);
  if (known == entries.end()) {
    entries.emplace(entry.index, std::move(entry));
  } else if (std::pair(entry.attempt, rank(entry)) > std::pair(known->second.attempt, rank(known->second))) {
    known->second = std::move(entry);
  }
}

}  // namespace tessera::client

#include "client/cli/models/weights_report.h"

#include <boost/json.hpp>
#include <cstdio>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/paths/path_text.h"
#include "base/text/byte_text.h"
#include "client/cli/output/json_line.h"
#include "control/parameters/component_files.h"
#include "models/weights/file_kind.h"
#include "models/weights/single_model.h"

namespace tessera::client {
namespace {

namespace json = boost::json;

std::string_view RoleText(models::PartRole role) {
  switch (role) {
    case models::PartRole::kTransformer:
      return "transformer";
    case models::PartRole::kAutoencoder:
      return "autoencoder";
    case models::PartRole::kTextEncoder:
      return "text encoder";
  }
  return "";
}

std::string_view ContainerText(models::FileContainer container) {
  return container == models::FileContainer::kGguf ? "GGUF" : "safetensors";
}

// "Q4_K x 120, F32 x 80"
std::string StoredText(const models::FilePart& part) {
  std::vector<std::string> types;
  for (const auto& [type, count] : part.stored) types.push_back(absl::StrCat(type, " x ", count));
  return absl::StrJoin(types, ", ");
}

// What is said about a file.
struct Report {
  models::FileKind kind;
  absl::Status unread = absl::OkStatus();                   // the error if no part of the file and no adapter is read
  std::optional<models::SingleModel> model = std::nullopt;  // of a file with a transformer
  std::string problem = {};                                 // why no model can be made of the file; empty if one can
};

Report ReportOf(const models::FileKind& kind, const std::string& path) {
  Report report{.kind = kind};
  const auto note = [&](const absl::Status& status) { report.problem = std::string(status.message()); };
  if (const absl::Status usable = models::CheckUsable(kind, path); !usable.ok()) {
    note(usable);
    if (kind.adapter.empty()) report.unread = usable;
    return report;
  }
  absl::StatusOr<models::SingleModel> model = models::AssembleModel(path, {});
  if (!model.ok()) {
    note(model.status());
  } else {
    report.model = *std::move(model);
    if (!report.model->missing.empty()) note(models::MissingPartsError(*report.model, path));
  }
  return report;
}

// A file whose name is not one of weights is probably no broken file of weights, but something else.
absl::Status ErrorOfFile(const absl::Status& status, const std::string& path) {
  if (!absl::IsInvalidArgument(status) || models::IsCheckpointName(path)) return status;
  return absl::InvalidArgumentError(absl::StrCat(
      base::QuotePath(path),
      " holds no weights; valid is a model's folder, a file of weights in safetensors or GGUF, or an image"));
}

void PrintText(const Report& report, const std::string& path) {
  const models::FileKind& kind = report.kind;
  std::printf("file        %s\ncontainer   %s", path.c_str(), std::string(ContainerText(kind.container)).c_str());
  if (!kind.architecture.empty()) std::printf(", architecture %s", kind.architecture.c_str());
  std::printf("\nweights     %s\n", !kind.adapter.empty()       ? kind.adapter.c_str()
                                    : kind.quantization.empty() ? "not quantized"
                                                                : kind.quantization.c_str());
  for (const models::FilePart& part : kind.parts) {
    std::printf("holds       %-13s %s, %s: %zu tensors, %s (%s)\n", std::string(RoleText(part.role)).c_str(),
                part.family.c_str(), part.class_name.c_str(), part.tensors, base::ByteText(part.bytes).c_str(),
                StoredText(part).c_str());
  }
  if (!kind.foreign_family.empty()) std::printf("family      %s\n", kind.foreign_family.c_str());
  for (const std::string& name : kind.unknown) std::printf("unknown     %s\n", name.c_str());
  if (report.model) {
    std::printf("model       as %s\n", report.model->base.c_str());
    for (const auto& [component, source] : report.model->sources) {
      const bool is_published = component == "scheduler" && source.config.has_value();
      std::printf("  %-16s %s\n", component.c_str(), is_published ? "as published" : source.path.c_str());
    }
    for (const models::MissingPart& part : report.model->missing) {
      std::printf("  %-16s missing: a %s, see %s%s%s\n", part.component.c_str(), part.class_name.c_str(),
                  part.option.c_str(), part.without.empty() ? "" : " or ", part.without.c_str());
    }
  }
  // An error is reported on standard error.
  if (!report.problem.empty() && report.unread.ok()) std::printf("problem     %s\n", report.problem.c_str());
}

json::array TextArray(const std::vector<std::string>& texts) {
  json::array array;
  for (const std::string& text : texts) array.push_back(JsonText(text));
  return array;
}

void PrintJson(const Report& report, const std::string& path) {
  const models::FileKind& kind = report.kind;
  json::array parts;
  for (const models::FilePart& part : kind.parts) {
    json::object stored;
    for (const auto& [type, count] : part.stored) stored[type] = count;
    parts.push_back(json::object{{"role", RoleText(part.role)},
                                 {"family", part.family},
                                 {"class", part.class_name},
                                 {"prefix", JsonText(part.prefix)},
                                 {"tensors", part.tensors},
                                 {"bytes", part.bytes},
                                 {"stored", std::move(stored)}});
  }
  json::object object = {{"event", "weights"},
                         {"path", JsonText(path)},
                         {"container", ContainerText(kind.container)},
                         {"architecture", JsonText(kind.architecture)},
                         {"quantization", JsonText(kind.quantization)},
                         {"adapter", kind.adapter},
                         {"foreign_family", kind.foreign_family},
                         {"parts", std::move(parts)},
                         {"unknown", TextArray(kind.unknown)}};
  if (report.model) {
    json::array components;
    for (const auto& [component, source] : report.model->sources) {
      components.push_back(json::object{{"name", component}, {"path", JsonText(source.path)}});
    }
    json::array missing;
    for (const models::MissingPart& part : report.model->missing) {
      missing.push_back(json::object{
          {"name", part.component}, {"class", part.class_name}, {"option", part.option}, {"without", part.without}});
    }
    object["base_model"] = report.model->base;
    object["components"] = std::move(components);
    object["missing"] = std::move(missing);
  }
  object["problem"] = JsonText(report.problem);
  PrintJsonLine(object);
}

}  // namespace

absl::Status ReportWeights(const std::string& path, bool json) {
  const absl::StatusOr<models::FileKind> kind = models::ReadFileKind(path);
  if (!kind.ok()) return ErrorOfFile(kind.status(), path);
  const Report report = ReportOf(*kind, path);
  if (json) {
    PrintJson(report, path);
  } else {
    PrintText(report, path);
  }
  return report.unread;
}

}  // namespace tessera::client

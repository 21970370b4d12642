#include "server/verification/certificate.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/private_files.h"
#include "base/files/sha256.h"
#include "base/files/user_folders.h"
#include "base/macros/status_macros.h"
#include "server/verification/subject_json.h"

namespace tessera::server {
namespace {

namespace json = boost::json;

constexpr int kVersion = 3;
constexpr size_t kMaxBytes = size_t{1} << 16;

// JSON has no infinity and no NaN.
json::value Number(double value) {
  if (std::isfinite(value)) return value;
  return json::string(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

double ReadNumber(const json::value& value) {
  if (!value.is_string()) return value.to_number<double>();
  if (value.as_string() == "inf") return HUGE_VAL;
  if (value.as_string() == "-inf") return -HUGE_VAL;
  return NAN;
}

json::value Optional(const std::optional<double>& value) { return value.has_value() ? Number(*value) : nullptr; }

std::optional<double> ReadOptional(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  return ReadNumber(value);
}

// Returns everything but the checksum, in a fixed order.
json::object ContentOf(const Certificate& certificate) {
  json::array canaries;
  for (const Canary& canary : certificate.canaries) {
    canaries.push_back({{"width", canary.width},
                        {"height", canary.height},
                        {"steps", canary.steps},
                        {"sampler", canary.sampler},
                        {"worst_relative_error", Number(canary.worst_relative_error)},
                        {"bound", Number(canary.bound)},
                        {"worst_step", canary.worst_step},
                        {"psnr_db", Optional(canary.psnr)},
                        {"drift", Optional(canary.drift)},
                        {"storage_drift", Optional(canary.storage_drift)},
                        {"storage_psnr_db", Optional(canary.storage_psnr)},
                        {"products_drift", Optional(canary.products_drift)},
                        {"products_psnr_db", Optional(canary.products_psnr)}});
  }
  json::object object = {{"version", kVersion}};
  AddSubject(certificate.subject, object);
  object["lossless"] = certificate.lossless;
  object["worst_relative_error"] = Number(certificate.worst().worst_relative_error);
  object["passed"] = certificate.passed();
  object["canaries"] = std::move(canaries);
  return object;
}

constexpr char kChecksumKey[] = R"(,"checksum":")";

// `content` is a JSON object. The checksum is that of its bytes, because not every parser reads each number again as it
// was written.
std::string WithChecksum(const std::string& content) {
  return absl::StrCat(content.substr(0, content.size() - 1), kChecksumKey,
                      absl::BytesToHexString(base::Sha256Of(content)), "\"}\n");
}

std::string ReadText(const json::object& object, const char* name) { return std::string(object.at(name).as_string()); }

int32_t ReadInteger(const json::object& object, const char* name) { return object.at(name).to_number<int32_t>(); }

Certificate ReadContent(const json::object& object) {
  Certificate certificate;
  certificate.subject = ReadSubject(object);
  certificate.lossless = object.at("lossless").as_bool();
  for (const json::value& entry : object.at("canaries").as_array()) {
    const json::object& canary = entry.as_object();
    certificate.canaries.push_back({.width = ReadInteger(canary, "width"),
                                    .height = ReadInteger(canary, "height"),
                                    .steps = ReadInteger(canary, "steps"),
                                    .sampler = ReadText(canary, "sampler"),
                                    .worst_relative_error = ReadNumber(canary.at("worst_relative_error")),
                                    .bound = ReadNumber(canary.at("bound")),
                                    .worst_step = ReadInteger(canary, "worst_step"),
                                    .psnr = ReadOptional(canary.at("psnr_db")),
                                    .drift = ReadOptional(canary.at("drift")),
                                    .storage_drift = ReadOptional(canary.at("storage_drift")),
                                    .storage_psnr = ReadOptional(canary.at("storage_psnr_db")),
                                    .products_drift = ReadOptional(canary.at("products_drift")),
                                    .products_psnr = ReadOptional(canary.at("products_psnr_db"))});
  }
  return certificate;
}

}  // namespace

bool Certificate::passed() const {
  return !canaries.empty() && std::ranges::all_of(canaries, [](const Canary& canary) { return canary.passed(); });
}

const Canary& Certificate::worst() const {
  const auto part = [](const Canary& canary) {
    const double part = canary.worst_relative_error / canary.bound;
    return std::isnan(part) ? HUGE_VAL : part;
  };
  return *std::ranges::max_element(canaries, {}, part);
}

std::optional<double> Certificate::products_drift() const {
  std::optional<double> largest;
  for (const Canary& canary : canaries) {
    if (!canary.products_drift.has_value()) continue;
    if (!std::isfinite(*canary.products_drift)) return std::nullopt;
    largest = std::max(largest.value_or(0), *canary.products_drift);
  }
  return largest;
}

std::string CertificateText(const Certificate& certificate) {
  return WithChecksum(json::serialize(ContentOf(certificate)));
}

json::object CertificateJson(const Certificate& certificate) {
  json::object content = ContentOf(certificate);
  const std::string checksum = absl::BytesToHexString(base::Sha256Of(json::serialize(content)));
  content["checksum"] = checksum;
  return content;
}

absl::StatusOr<Certificate> ParseCertificate(const std::string& text) {
  absl::Status none = absl::InvalidArgumentError("it is not a certificate");
  if (text.size() > kMaxBytes) return none;
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) return none;
  try {
    const json::object& object = value.as_object();
    if (object.at("version").to_number<int>() != kVersion) {
      return absl::InvalidArgumentError("it was made by another version of this program");
    }
    Certificate certificate = ReadContent(object);
    if (certificate.canaries.empty()) return none;
    if (WithChecksum(absl::StrCat(text.substr(0, text.rfind(kChecksumKey)), "}")) != text) {
      return absl::InvalidArgumentError("it was altered: its checksum does not match its content");
    }
    return certificate;
  } catch (const std::exception&) {
    return none;
  }
}

std::string CertificateFolder::DefaultPath() {
  const char* const chosen = std::getenv("TESSERA_CERTIFICATES");
  return chosen != nullptr && *chosen != '\0' ? chosen : base::UserDataFolder() + "/certificates";
}

std::string CertificateFolder::FileOf(const CertificateSubject& subject) const {
  base::Sha256 digest;
  for (const std::string* part :
       {&subject.model_digest, &subject.layout, &subject.device, &subject.dtype, &subject.storage, &subject.products,
        &subject.build, &subject.plugin, &subject.libraries, &subject.gpu, &subject.driver, &subject.cudnn,
        &subject.nccl, &subject.communicator}) {
    digest.UpdatePart(*part);
  }
  return absl::StrCat(path_, "/", digest.Finish().substr(0, 32), ".json");
}

absl::StatusOr<Certificate> CertificateFolder::Find(const CertificateSubject& subject) const {
  const std::string path = FileOf(subject);
  const std::optional<std::string> text = base::ReadSmallFile(path, kMaxBytes);
  if (!text) return absl::NotFoundError("there is no certificate for this model, layout, device, dtype and build");
  absl::StatusOr<Certificate> certificate = ParseCertificate(*text);
  const std::string name = absl::StrCat("the certificate ", std::filesystem::path(path).filename().string());
  if (!certificate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", std::string(certificate.status().message())));
  }
  if (certificate->subject != subject) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": it belongs to another model, layout or build"));
  }
  return certificate;
}

absl::Status CertificateFolder::Keep(const Certificate& certificate) const {
  RETURN_IF_ERROR(base::MakePrivateFolder(path_));
  return base::WriteFileAtomically(FileOf(certificate.subject), CertificateText(certificate), {.owner_only = true});
}

absl::Status CertificateFolder::Revoke(const CertificateSubject& subject) const {
  if (unlink(FileOf(subject).c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("a certificate cannot be revoked: ", std::strerror(errno)));
}

}  // namespace tessera::server

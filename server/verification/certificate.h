// What was proven of a layout: that on this model, with this build, its images are those of one rank. A certificate is
// a small JSON file with a checksum, found again by what it is about; one that was altered, or is about something else,
// is none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::server {

// What a certificate is about. Another value of any of these needs another certificate.
struct CertificateSubject {
  std::string model_digest;
  std::string layout;  // canonical text
  std::string device;  // "cpu" or "cuda"
  std::string dtype;
  std::string build;      // of the worker program
  std::string plugin;     // that it computes on this device with: a digest; empty on the CPU
  std::string libraries;  // that the worker computes with
  // Of the devices; empty on the CPU but for the last.
  std::string gpu;
  std::string driver;
  std::string cudnn;
  std::string nccl;
  std::string communicator;  // through which ranks exchange tensors

  bool operator==(const CertificateSubject&) const = default;
};

// One request that was run on one rank and on the layout.
struct Canary {
  int32_t width = 0;
  int32_t height = 0;
  int32_t steps = 0;
  std::string sampler;
  double worst_relative_error = 0;
  double bound = 0;             // of that error
  int32_t worst_step = 0;       // 1, 2, …: where the error is largest in proportion to its bound; 0: before the first
  std::optional<double> psnr;   // of the images in dB; none for equal ones
  std::optional<double> drift;  // of the last latents from one rank's, where the layout has stale steps

  bool passed() const { return worst_relative_error <= bound; }  // false for NaN
};

struct Certificate {
  CertificateSubject subject;
  std::vector<Canary> canaries;
  bool lossless = true;  // without stale steps

  bool passed() const;
  const Canary& worst() const;  // by the part of its bound that it uses; there is at least one
};

// JSON with a checksum over everything else; and back. InvalidArgument for what is no certificate or has been altered.
std::string CertificateText(const Certificate& certificate);
absl::StatusOr<Certificate> ParseCertificate(const std::string& text);

// A folder of certificates, one file each, named after its subject. Files are written whole or not at all.
class CertificateFolder {
 public:
  explicit CertificateFolder(std::string path) : path_(std::move(path)) {}

  // $TESSERA_CERTIFICATES, else tessera/certificates in $XDG_DATA_HOME or ~/.local/share.
  static std::string DefaultPath();

  std::string FileOf(const CertificateSubject& subject) const;

  // NotFound where there is none, InvalidArgument for a file that is no certificate, was altered, or is about something
  // else. A certificate that did not pass is returned like every other one.
  absl::StatusOr<Certificate> Find(const CertificateSubject& subject) const;
  absl::Status Keep(const Certificate& certificate) const;
  // One that is not there is no error.
  absl::Status Revoke(const CertificateSubject& subject) const;

 private:
  std::string path_;
};

}  // namespace tessera::server

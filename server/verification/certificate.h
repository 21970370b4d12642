// A certificate records that a layout was proven on this model with this build: its images are those of one rank. It is
// a small JSON file with a checksum, found by its subject. A file that was altered, or has a different subject, is not
// a valid certificate.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::control {
struct LoadParameters;
}

namespace tessera::server {

// The subject of a certificate. A different value of any field needs another certificate.
struct CertificateSubject {
  std::string model_digest;
  std::string layout;  // canonical text
  std::string device;  // "cpu" or "cuda"
  std::string dtype;
  std::string storage;    // of quantized weights (control::StorageText); empty if they are plain
  std::string products;   // of the transformer's blocks (control::ProductsText); empty if they are plain
  std::string build;      // digest of the worker program
  std::string plugin;     // digest of the plugin that computes on this device; empty on the CPU
  std::string libraries;  // libraries that the worker computes with
  // Properties of the devices; on the CPU all but the last are empty.
  std::string gpu;
  std::string driver;
  std::string cudnn;
  std::string nccl;
  std::string communicator;  // how ranks exchange tensors

  bool operator==(const CertificateSubject&) const = default;
};

// One request that was run on one rank and on the layout.
struct Canary {
  int32_t width = 0;
  int32_t height = 0;
  int32_t steps = 0;
  std::string sampler;
  double worst_relative_error = 0;
  double bound = 0;             // bound of that error
  int32_t worst_step = 0;       // 1, 2, …: step whose error is largest relative to its bound; 0: before the first
  std::optional<double> psnr;   // of the images in dB; absent for equal images
  std::optional<double> drift;  // relative error of the last latents, for layouts with stale steps
  // The same of weights that were quantized while they were loaded, against the weights as they are stored, and the
  // PSNR of the images in dB (absent for equal images).
  std::optional<double> storage_drift, storage_psnr;
  // The same of products that are not plain, against plain products with the same weights.
  std::optional<double> products_drift, products_psnr;

  bool passed() const { return worst_relative_error <= bound; }  // false for NaN
};

struct Certificate {
  CertificateSubject subject;
  std::vector<Canary> canaries;
  bool lossless = true;  // the layout has no stale steps

  bool passed() const;
  const Canary& worst() const;  // largest error relative to its bound; there is at least one canary
  // Returns the largest products_drift of the canaries. Absent if none was measured, or if one is not finite.
  std::optional<double> products_drift() const;
};

// Convert to and from JSON with a checksum over everything else. INVALID_ARGUMENT for a text that is not a certificate
// or was altered.
std::string CertificateText(const Certificate& certificate);
// Returns the fields of that text, with the numbers of the certificate, which a parser may read as their neighbours.
boost::json::object CertificateJson(const Certificate& certificate);
absl::StatusOr<Certificate> ParseCertificate(const std::string& text);

// A folder of certificates, one file each, named after its subject. Files are written whole or not at all.
class CertificateFolder {
 public:
  explicit CertificateFolder(std::string path) : path_(std::move(path)) {}

  // $TESSERA_CERTIFICATES, else tessera/certificates in $XDG_DATA_HOME or ~/.local/share.
  static std::string DefaultPath();

  std::string FileOf(const CertificateSubject& subject) const;

  // NOT_FOUND: there is no certificate. INVALID_ARGUMENT: the file is not a certificate, was altered, or has a
  // different subject. A certificate that did not pass is returned like any other.
  absl::StatusOr<Certificate> Find(const CertificateSubject& subject) const;
  absl::Status Keep(const Certificate& certificate) const;
  // A missing certificate is no error.
  absl::Status Revoke(const CertificateSubject& subject) const;

 private:
  std::string path_;
};

// Returns whether the certificate's subject includes the identity of devices. On the CPU it does not: `libraries` of
// the model says what a CPU computes with.
bool NeedsIdentity(const control::LoadParameters& load);

}  // namespace tessera::server
